"""The architecture that transformers selects for a config.json that does not name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.models.config.library import (
    BASE,
    CAUSAL,
    ENCODER_DECODER,
    class_source,
    class_table,
    config_defaults,
    find_modeling,
)

_HEAD = r"nn\.Linear\([^\n]*, bias=False\)"
_BASE_SUFFIX = "Model"


def with_architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with the architecture that transformers selects by its model type.

    The file may name none, or a base class without a head, such as BloomModel. A base class becomes the causal language
    model if its head is the embedding, so that no tensor is missing. Other files stay unchanged.
    """
    names, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(model_type, str):
        return dict(config)
    if not names:
        tables = (ENCODER_DECODER, CAUSAL) if config.get("is_encoder_decoder") else (CAUSAL, ENCODER_DECODER)
        known = (name for table in tables for name in class_table(table).get(model_type, ())[:1])
        selected = next(known, None)
    elif isinstance(names, list) and str(names[0]).endswith(_BASE_SUFFIX):
        selected = _tied_causal_model(names[0], model_type, config)
    else:
        selected = None
    return {**config, **({"architectures": [selected]} if selected else {})}


def _tied_causal_model(base: str, model_type: str, config: Mapping[str, Any]) -> str | None:
    """Return the causal language model that consists of a base model and a head tied to its embedding, if there is."""
    bases, causal = class_table(BASE).get(model_type, ()), class_table(CAUSAL).get(model_type, ())
    if base not in bases or not causal:
        return None
    path = find_modeling(causal[0], model_type)
    if path is None:
        return None
    tied = {**config_defaults(path.parent, model_type), **config}.get("tie_word_embeddings")
    own = class_source(path.read_text(encoding="utf-8"), causal[0])
    modules = re.findall(r"\n {8}self\.\w+ = ((?:nn\.)?[A-Z]\w+\([^\n]*)", own)
    plain = len(modules) == 2 and modules[0].startswith(f"{base}(") and re.match(_HEAD, modules[1])
    return causal[0] if tied and plain else None
