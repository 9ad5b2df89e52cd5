"""engine=Python: dynamic batching. Each batch is one call of transformers' `generate`, which runs to its end."""
