"""`lmi simulate`: the engine's own scheduling in virtual time, with step times from data sheets or a trace."""
