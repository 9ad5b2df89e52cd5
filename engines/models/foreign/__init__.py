"""Decoders that no file of ours describes: transformers' own modules, with our attention, cache and linears.

`sources.py`, `description.py` and `split.py` are plain Python, for `lmi check` and `lmi models`; the others need torch.
"""
