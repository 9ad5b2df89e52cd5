"""Rotary frequencies that depend on the longest row of a call: rope types `dynamic` and `longrope`."""

from __future__ import annotations

from typing import Any

import torch

_ORIGINAL = "original_inv_freq"


def unscaled_length(config: Any) -> int | None:
    """Return the length up to which rotary frequencies do not depend on the longest row; None if they never do."""
    parameters = getattr(config, "rope_parameters", None) or {}
    ropes = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    lengths = {
        "dynamic": getattr(config, "max_position_embeddings", None),
        "longrope": getattr(config, "original_max_position_embeddings", None),
    }
    found = []
    for rope in ropes:
        kind = rope.get("rope_type")
        if kind in lengths:
            found.append(rope.get("original_max_position_embeddings") or lengths[kind])
    return min((length for length in found if isinstance(length, int)), default=None)


def reset_frequencies(module: torch.nn.Module) -> None:
    """Undo what earlier calls have changed. transformers keeps the frequencies of the longest row so far."""
    for rotary in module.modules():
        if not hasattr(rotary, "original_max_seq_len"):
            continue
        names = [name for name, _ in rotary.named_buffers(recurse=False) if name.endswith(_ORIGINAL)]
        for prefix in (name.removesuffix(_ORIGINAL) for name in names):
            latest = getattr(rotary, f"{prefix}inv_freq")
            original = getattr(rotary, f"{prefix}{_ORIGINAL}").to(latest.device, copy=True)
            rotary.register_buffer(f"{prefix}inv_freq", original, persistent=False)
            setattr(rotary, f"{prefix}max_seq_len_cached", rotary.original_max_seq_len)
