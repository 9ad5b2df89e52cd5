"""What one client can take of the server: connections, bodies, streams."""
