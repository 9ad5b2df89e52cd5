"""Move the rotary embedding of transformers modules into the native operation that writes keys to the cache.

Attention modules rotate queries and keys with `apply_rotary_pos_emb`, which takes about ten torch operations. If a
module attends with exactly what this function returned, the replacement returns its inputs unchanged, and the native
operation rotates them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

import lmi_kernels
from engines.layers.native_step_attention import NativeStepAttention, RowAngles
from engines.layers.rotary import cosines_and_sines
from engines.layers.step_attention import StepAttention

_FUNCTION = "apply_rotary_pos_emb"


class UnsupportedAttention(ValueError):
    """A module attends in a way that the engine's KV cache does not support."""


@dataclass(frozen=True, slots=True)
class RotaryForm:
    """Layout of a function's cosines and sines, and the pairs of features that it rotates."""

    in_pairs: bool
    """Whether each number is repeated at once (aabb); otherwise the whole row is repeated (abab)."""
    interleaved: bool
    """Whether features 2i and 2i + 1 are a pair; otherwise features i and i + dim / 2 are."""

    def double(self, numbers: torch.Tensor) -> torch.Tensor:
        """Repeat numbers in this layout. [..., n] -> [..., 2 * n]."""
        return numbers.repeat_interleave(2, -1) if self.in_pairs else torch.cat((numbers, numbers), -1)

    def row_angles(self, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor | None:
        """Join cosines and sines, [1, num_rows, dim] each, to [num_rows, dim]. Return None for another layout."""
        if cos.dim() != 3 or cos.shape != sin.shape or cos.shape[0] != 1:
            return None
        both = torch.cat((cos, sin)).float()
        single = both[..., ::2] if self.in_pairs else both[..., : both.shape[-1] // 2]
        return torch.cat((single[0], single[1]), -1) if torch.equal(self.double(single), both) else None


@dataclass(slots=True)
class StepAngles:
    """Rotary angles of the current step's rows, made once for all layers that share their cosines."""

    step: StepAttention | None = None
    by_cos_id: dict[int, tuple[torch.Tensor, RowAngles | None]] = field(default_factory=dict)
    """Cosines and angles, by the id of the cosines. Keeping the cosines keeps their id valid."""

    def begin(self, step: StepAttention) -> None:
        self.step = step
        self.by_cos_id.clear()

    def of(self, cos: torch.Tensor, sin: torch.Tensor, form: RotaryForm) -> RowAngles | None:
        """Return the angles for native attention, or None if it cannot apply them."""
        if not isinstance(self.step, NativeStepAttention):
            return None
        if id(cos) not in self.by_cos_id:
            cos_sin = form.row_angles(cos, sin)
            angles = None if cos_sin is None else RowAngles.of(self.step.step, cos_sin, form.interleaved)
            self.by_cos_id[id(cos)] = cos, angles
        return self.by_cos_id[id(cos)][1]


class LateRotary:
    """Replacement of `apply_rotary_pos_emb` in one attention module."""

    def __init__(self, function: Callable[..., Any], form: RotaryForm, angles: StepAngles) -> None:
        self._function = function
        self._form = form
        self._step_angles = angles
        self._angles: RowAngles | None = None
        self._inputs: Any = (None, None)
        """Queries and keys of the current call before the rotation. `_outputs` has what was returned."""
        self._outputs: Any = (None, None)
        self._is_last = False
        """Whether the module attended with exactly the returned tensors in its last call."""

    @classmethod
    def replace_in(cls, module: nn.Module, angles: StepAngles) -> LateRotary | None:
        """Replace the function if it has a known form. Return None if the module stays as it is."""
        forward = type(module).forward
        if not isinstance(forward, FunctionType) or _FUNCTION not in forward.__code__.co_names:
            return None
        function = forward.__globals__.get(_FUNCTION)
        form = None if function is None else form_of(function)
        if function is None or form is None:
            return None
        replacement = cls(function, form, angles)
        scope = {**forward.__globals__, _FUNCTION: replacement}
        new_forward = FunctionType(
            forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__
        )
        new_forward.__kwdefaults__ = forward.__kwdefaults__
        module.__dict__["forward"] = MethodType(new_forward, module)
        return replacement

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        plain = not args and not kwargs and q.shape[-1] == cos.shape[-1]
        self._angles = self._step_angles.of(cos, sin, self._form) if plain else None
        self._inputs = self._outputs = q, k
        if self._angles is None or not self._is_last:
            self._outputs = self._function(q, k, cos, sin, *args, **kwargs)
        return self._outputs

    def unrotated(
        self, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, RowAngles | None]:
        """Return queries and keys for attention, and the angles to rotate them by; None: they are already rotated.

        Raises:
            UnsupportedAttention: the module changed the returned tensors, but did not in its last call.
        """
        same = query is self._outputs[0] and key is self._outputs[1]
        inputs, angles, was_last = self._inputs, self._angles, self._is_last
        self._inputs = self._outputs = (None, None)
        self._angles, self._is_last = None, same
        if same and angles is not None:
            return (*inputs, angles)
        if was_last and angles is not None:
            raise UnsupportedAttention(
                "queries and keys are changed after the rotary embedding, but not in all steps"
            )
        return query, key, None


@cache
def form_of(function: Callable[..., Any]) -> RotaryForm | None:
    """Find the form of a function by running it. Return None if it matches no form."""
    heads, rows, dim = 2, 3, 8
    q = torch.linspace(-3, 3, heads * rows * dim).sin_().view(1, heads, rows, dim)
    angles = torch.linspace(0, 7, rows * dim // 2).view(rows, -1)
    for form in (RotaryForm(a, b) for a in (False, True) for b in (False, True)):
        cos, sin = (form.double(numbers)[None] for numbers in (angles.cos(), angles.sin()))
        try:
            turned = function(q, q + 1, cos, sin)
        except Exception:  # the model's code on inputs that it may not expect
            return None
        table = cosines_and_sines(
            torch.cat((angles.cos(), angles.sin()), -1), torch.arange(rows), form.interleaved
        )
        expected = [x[0].transpose(0, 1).contiguous() for x in (q, q + 1)]
        for x in expected:
            lmi_kernels.rotary_(x, *table, form.interleaved)
        if all(
            torch.allclose(a[0], b.transpose(0, 1), 1e-5, 1e-5) for a, b in zip(turned, expected, strict=True)
        ):
            return form
    return None
