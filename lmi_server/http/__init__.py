"""HTTP connections, request bodies and streams, with limits on what one client can use."""
