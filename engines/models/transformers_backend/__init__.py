"""Decoders without an implementation in `engines/models/architectures`: transformers' own modules, with this engine's
attention, KV cache and linear layers.

`sources.py`, `description.py` and `split.py` are plain Python, for `lmi check` and `lmi models`. The others need torch.
"""
