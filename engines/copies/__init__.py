"""Several copies of an engine behind the interface of one, for the web process."""
