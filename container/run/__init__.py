"""Run a server: start, supervise and stop its processes."""
