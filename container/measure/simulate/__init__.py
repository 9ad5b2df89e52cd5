"""`lmi simulate`: the engine's own scheduling in virtual time, on this or any other machine."""
