"""Scripts that run an engine inside its own environment; see loop.py."""
