"""Sampling from logits: truncation, choice, penalties, log-probabilities."""
