"""Scheduling: selects what runs in the next step. Plain Python: no torch."""
