"""Facts about architectures, read from transformers' source without importing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from engines.models.config.library import (
    CAUSAL,
    ENCODER_DECODER,
    class_table,
    config_defaults,
    find_modeling,
    type_defaults,
)
from engines.models.transformers_backend.split import NORMS_OF_ALL_HEADS, with_split_norms


@dataclass(frozen=True, slots=True)
class Source:
    """The source of one architecture."""

    architecture: str
    modeling: str
    """Text of the modeling file."""
    defaults: Mapping[str, Any]
    """Attributes of the configuration class with literal values."""

    @property
    def other_names(self) -> Mapping[str, str]:
        """Architecture's own names of common config.json fields, by the common name."""
        return self.defaults.get("attribute_map") or {}

    @property
    def plan(self) -> Mapping[str, str] | None:
        """Tensor-parallel style of modules, by pattern of their names. None if transformers has no plan."""
        plan = self.defaults.get("base_model_tp_plan")
        return with_split_norms(plan) if plan and NORMS_OF_ALL_HEADS in self.modeling else plan


@cache
def generating_architectures() -> frozenset[str]:
    """Return names as in the `architectures` field of config.json. Empty if transformers has no such tables."""
    return frozenset(name for table in _tables() for names in table.values() for name in names)


@cache
def audio_architectures() -> frozenset[str]:
    """Return names of models that transformers lists with the encoder-decoder models because they take audio."""
    every = (name for names in class_table(ENCODER_DECODER).values() for name in names)
    return frozenset(every) - generating_architectures()


@cache
def _tables() -> tuple[Mapping[str, tuple[str, ...]], ...]:
    """Return the class names of each model type, for decoders and for models with an encoder and a decoder of text."""
    decoders, others = class_table(CAUSAL), class_table(ENCODER_DECODER)
    pairs = {each: others[each] for each in others if type_defaults(each).get("is_encoder_decoder") is True}
    return decoders, pairs


def generates(architecture: str, config: Mapping[str, Any]) -> bool:
    """Return whether transformers' auto classes load this model by a class of its own. config: its config.json.

    They select by the model type. A class name that differs from the tables' belongs to the type if it begins alike,
    such as InternLM3ForCausalLM, or Qwen3_5ForConditionalGeneration around a text model. Other names stand for other
    code or for other tasks.
    """
    model_type = config.get("model_type")
    if not known_type(model_type):
        return False
    if architecture in generating_architectures():
        return True
    plain, beginning = (re.sub("[-_]", "", name).lower() for name in (architecture, str(model_type)))
    wraps_text = isinstance(config.get("text_config"), dict)
    return plain == f"{beginning}forcausallm" or (
        wraps_text and plain == f"{beginning}forconditionalgeneration"
    )


def known_type(model_type: object) -> bool:
    """Return whether transformers has a text generation model of this type, the field of config.json."""
    return isinstance(model_type, str) and any(model_type in table for table in _tables())


def model_types(architecture: str) -> list[str]:
    """Return the model types with which transformers selects an architecture."""
    return list(dict.fromkeys(each for table in _tables() for each in table if architecture in table[each]))


@cache
def causal_architectures() -> Mapping[str, str]:
    """Return the architectures of causal language models, each with one of its model types."""
    table = class_table(CAUSAL)
    return {name: model_type for model_type in reversed(list(table)) for name in table[model_type]}


@cache
def find_source(architecture: str, model_type: str) -> Source | None:
    """Find the source of an architecture. model_type: the field of config.json."""
    path = find_modeling(architecture, model_type)
    if path is None:
        return None
    defaults = config_defaults(path.parent, model_type)
    return Source(architecture, path.read_text(encoding="utf-8"), defaults)
