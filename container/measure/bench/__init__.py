"""`lmi bench`: load on a server over HTTP and its figures. `lmi compare` builds on it."""
