"""Find transformers modules that one native operation can replace.

A module's code runs on test inputs, and a replacement is used only if it gives the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import nn
from torch.func import functional_call

from lmi_kernels import Activation, activate
from lmi_kernels.cpu import RmsNorm, shared_team

_ROWS = 3
_EPS_NAMES = ("variance_epsilon", "eps", "norm_eps", "epsilon")


class NativeNorm(nn.Module):
    """Replacement of an RMSNorm."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self._norm = RmsNorm(weight, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width] -> the same."""
        return self._norm(x.reshape(-1, x.shape[-1])).view(x.shape)


def epsilon(norm: nn.Module) -> float | None:
    """Return the epsilon that a norm adds to the mean of squares, or None if it is unknown."""
    found = next((getattr(norm, name) for name in _EPS_NAMES if hasattr(norm, name)), None)
    return found if isinstance(found, float) else None


def rounds_before_weight(norm: nn.Module) -> bool:
    """Return whether an RMSNorm rounds features to its dtype before it multiplies by the weights. False until the
    weights are loaded."""
    weight, eps = norm.get_parameter("weight"), epsilon(norm)
    if weight.is_meta:
        return False
    x = numbers(_ROWS, len(weight)).to(weight)
    with torch.inference_mode():
        expected = norm(x).float()
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + (eps or 0.0))
        first, last = weight * normed.to(x.dtype), (weight * normed).to(x.dtype)
        return bool((first - expected).abs().sum() < (last - expected).abs().sum())


def native_norm(module: nn.Module) -> NativeNorm | None:
    """Return the replacement of a norm with loaded weights. Return None for other modules."""
    named, eps = dict(module.named_parameters()), epsilon(module)
    if shared_team() is None or not type(module).__name__.endswith("RMSNorm") or list(named) != ["weight"]:
        return None
    weight = named["weight"]
    if weight.dim() != 1 or weight.device.type != "cpu" or eps is None:
        return None
    x = numbers(_ROWS, len(weight))
    with torch.inference_mode():
        expected = module(x)
        # Some models store norm weights with 1 subtracted.
        candidates = (NativeNorm(weight + offset, eps) for offset in (0.0, 1.0))
        return next((each for each in candidates if torch.allclose(each(x), expected, 1e-5, 1e-5)), None)


def embedding_scale(module: Any) -> float | None:
    """Return the factor by which a token embedding multiplies the rows of its table. Return None for other modules."""
    table, scale = numbers(len(module.weight), 2), float(getattr(module, "embed_scale", 1.0))
    with torch.inference_mode():
        computed = functional_call(module, {"weight": table}, torch.arange(_ROWS))
    return scale if torch.equal(computed, table[:_ROWS] * scale) else None


def gate_activation(
    module: nn.Module, linears: Sequence[str], down: str, widths: tuple[int, int]
) -> Activation | None:
    """Return act if a module computes down(act(gate(x)) * up(x)). Return None for other modules.

    Args:
        linears: names of the gate and up layers, or of the one layer that computes both.
        down: name of the down layer.
        widths: hidden size and intermediate size.
    """
    width, middle = widths
    both = numbers(_ROWS, 2 * middle)
    results = both.chunk(2, -1) if len(linears) == 2 else (both,)
    replacements = [_Constant(result) for result in results]
    children = {name: getattr(module, name) for name in (*linears, down)}
    x = numbers(_ROWS, width)
    try:
        for name, replacement in zip(linears, replacements, strict=True):
            setattr(module, name, replacement)
        setattr(module, down, nn.Identity())
        with torch.inference_mode():
            computed = module(x.clone())
        # The module may scale or normalize its input first.
        unchanged = all(torch.equal(each.input, x) for each in replacements)
    except Exception:  # the model's code on inputs that it may not expect
        return None
    finally:
        for name, child in children.items():
            setattr(module, name, child)
    return activation_of(both, computed) if unchanged else None


def activation_of(both: torch.Tensor, computed: torch.Tensor) -> Activation | None:
    """Return act if `computed` is act(gate) * up, or None. both: gate and up side by side."""
    gate, up = (half.contiguous() for half in both.chunk(2, -1))
    for kind in get_args(Activation):
        if torch.allclose(activate(gate, kind) * up, computed, 1e-6, 1e-6):
            found: Activation = kind
            return found
    return None


class _Constant(nn.Module):
    def __init__(self, result: torch.Tensor) -> None:
        super().__init__()
        self._result = result
        self.input = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.input = x
        return self._result


def numbers(rows: int, width: int) -> torch.Tensor:
    """Return fixed test inputs, [rows, width]."""
    return torch.linspace(-3, 3, rows * width).sin_().mul_(20).view(rows, width)
