"""Prepares models: fetching, conversion, tokenizers, publishing."""
