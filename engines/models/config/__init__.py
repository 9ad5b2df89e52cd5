"""A model's shape, read from its config.json. Plain Python, because `lmi check` runs without torch."""

from engines.models.config.attention import AttentionSpec, DynamicRope, LongRope, RopeScaling, Rotary, Yarn
from engines.models.config.description import ExpertsConfig, ModelConfig, NormSpec, element_bytes
from engines.models.config.fields import UnsupportedModel

__all__ = [
    "AttentionSpec",
    "DynamicRope",
    "ExpertsConfig",
    "LongRope",
    "ModelConfig",
    "NormSpec",
    "RopeScaling",
    "Rotary",
    "UnsupportedModel",
    "Yarn",
    "element_bytes",
]
