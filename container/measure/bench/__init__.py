"""`lmi bench`: load on a server over HTTP, and what came of it. `lmi compare` builds on it."""
