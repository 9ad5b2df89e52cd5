"""Run a transformers module as a model of this engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from engines.kv_cache import KvCache
from engines.layers.step_attention import StepAttention
from engines.models.transformers_backend.paged_layer import StepState


class TransformersDecoder:
    """One rank's part of a model. See `engines.models.decoder.Model`."""

    largest_logits = None

    def __init__(self, causal: Any, step_state: StepState, leads: bool) -> None:
        """
        causal: transformers' model with its head.
        step_state: state of the current step, shared by all layers.
        leads: whether this is rank 0.
        """
        prefix = causal.base_model_prefix
        self._base = getattr(causal, prefix)
        self._head = causal.get_output_embeddings()
        self._causal = causal
        self._fixed_hidden = _FixedHiddenStates()
        # The causal model's own forward scales logits and the like. It gets the hidden states already computed.
        setattr(causal, prefix, self._fixed_hidden)
        self._step_state = step_state
        self._leads = leads

    def forward(self, input_ids: torch.Tensor, cache: KvCache, step: StepAttention) -> torch.Tensor:
        """Compute hidden states after the final norm, of the step's `wanted_rows`.

        input_ids: [num_rows], int64 -> [num_wanted, hidden].

        Raises:
            UnsupportedAttention: the module attends in a way that this engine does not support.
        """
        self._step_state.begin(step, cache)
        with self._first_layers(len(cache.layers)):
            result = self._base(
                input_ids=input_ids[None],
                position_ids=step.positions[None],
                use_cache=False,
                return_dict=True,
            )
        self._step_state.end(len(cache.layers))
        hidden: torch.Tensor = result.last_hidden_state[0]
        return hidden if step.wanted_rows is None else hidden[step.wanted_rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Compute logits. hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on other ranks."""
        if not self._leads:
            self._head(hidden[None])
            return None
        self._fixed_hidden.hidden = hidden[None]
        # The ids are ignored, because only the head is left.
        ids = torch.zeros(hidden[None].shape[:2], dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self._causal(input_ids=ids, use_cache=False, return_dict=True).logits[0]
        return logits

    @contextmanager
    def _first_layers(self, count: int) -> Iterator[None]:
        """Keep only the first `count` layers inside the context."""
        if count == self._base.config.num_hidden_layers:
            yield
            return
        owner, name, layers = self._layers()
        setattr(owner, name, layers[:count])
        try:
            yield
        finally:
            setattr(owner, name, layers)

    def _layers(self) -> tuple[nn.Module, str, nn.ModuleList]:
        length = self._base.config.num_hidden_layers
        for owner in self._base.modules():
            for name, child in owner.named_children():
                if isinstance(child, nn.ModuleList) and len(child) == length:
                    return owner, name, child
        raise ValueError(f"{type(self._causal).__name__} has no list of layers")


class _FixedHiddenStates(nn.Module):
    """Replacement of the base model. Returns hidden states that were computed before."""

    hidden: torch.Tensor

    @property
    def decoder(self) -> _FixedHiddenStates:
        """Some heads call the decoder in the base model."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> _HiddenOnly:
        return _HiddenOnly(last_hidden_state=self.hidden)


class _HiddenOnly(BaseModelOutputWithPastAndCrossAttentions):
    """Output of the base model, with only the fields that heads read, including those of models with experts."""

    router_logits = None
