"""Measures servers: load, comparisons, profiles, KV waste."""
