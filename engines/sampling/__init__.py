"""From logits to tokens: one file a step, `sampler.py` runs them over the batch."""
