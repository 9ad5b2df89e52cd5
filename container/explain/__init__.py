"""Explains a configuration: what it means and what it decides."""
