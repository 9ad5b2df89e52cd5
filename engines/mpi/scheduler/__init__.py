"""Decides what runs next. Plain Python: no torch."""
