"""Norms and activations."""
