"""Map the activation names of config.json to those of the kernels."""

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
    """Return the activation's name in `lmi_kernels.activate`. Raises `UnsupportedModel` for unknown names."""
    return _KINDS[fields.one_of(name, default, tuple(_KINDS))]
