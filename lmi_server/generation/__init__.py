"""From requests to the engine and back to text."""
