"""`lmi simulate`: the engine's own scheduling in virtual time, on a machine that need not be here."""
