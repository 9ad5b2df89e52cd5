"""engine=Python: requests are collected into batches, each of which is one `generate` of transformers to its end."""
