"""`lmi bench`: send load to a server over HTTP and compute its figures. `lmi compare` builds on it."""
