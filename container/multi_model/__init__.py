"""Several models in one container: a complete server for each model, and a router that forwards requests."""
