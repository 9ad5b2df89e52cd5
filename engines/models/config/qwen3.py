"""config.json of Qwen3: Llama's, with a window for some layers that is mostly off."""

from __future__ import annotations

from dataclasses import replace

from engines.models.config import llama
from engines.models.config.description import ModelConfig
from engines.models.config.fields import Fields

_HEAD_DIM = 128
"""Where the file names none: it is not hidden_size / heads here."""


def read(fields: Fields) -> ModelConfig:
    config = replace(llama.read(fields), head_dim=fields.count("head_dim", _HEAD_DIM), mlp_bias=False)
    if not fields.flag("use_sliding_window", False):
        return config
    return llama.within_window(config, fields.optional_count("sliding_window"))
