"""KV cache accounting: blocks, prefix caching and block tables. Plain Python: no torch."""
