"""From logits to tokens: truncation, choice, penalties, log-probabilities."""
