"""Explain a configuration: what it means, how open values are resolved, and what it needs."""
