"""Prepare models: download, conversion, tokenizers, and publishing in the cache."""
