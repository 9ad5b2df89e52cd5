"""Attention over the paged KV cache, rotary embedding, and writes to the cache."""
