"""Names of activation functions in a config.json."""

from __future__ import annotations

from engines.models.config.fields import Fields

_KINDS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def activation(fields: Fields, name: str, default: str) -> str:
    """Return the kind that `lmi_kernels.activate` knows. Raises UnsupportedModel."""
    return _KINDS[fields.one_of(name, default, tuple(_KINDS))]
