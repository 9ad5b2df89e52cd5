"""A model's shape, read from its config.json: one reader an architecture. Plain Python: `lmi check` reads it without
torch."""

from engines.models.config.description import ExpertsConfig, ModelConfig, ParallelBlock, element_bytes
from engines.models.config.fields import RopeScaling, UnsupportedModel

__all__ = [
    "ExpertsConfig",
    "ModelConfig",
    "ParallelBlock",
    "RopeScaling",
    "UnsupportedModel",
    "element_bytes",
]
