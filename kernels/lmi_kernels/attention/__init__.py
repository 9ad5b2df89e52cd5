"""Attention over the paged KV cache, and what comes right before it: rotary embedding and the cache write."""
