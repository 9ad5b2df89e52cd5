"""Send requests to the engine, and convert its outputs to text."""
