"""Call transformers' `generate` for prompts of different lengths, and test whether a model supports padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from engines.errors import RequestFailed
from engines.python.model import LoadedModel

Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes ids [num_rows, length] and logits [num_rows, vocab_size] (fp32); returns the logits to take the argmax of."""
Advance = Callable[[torch.Tensor], torch.Tensor]
"""Takes ids [num_rows, length], new tokens last; returns which rows have ended: [num_rows], bool."""

_SHORT, _LONG = (1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)
"""Token ids of the two prompts with which `padding_is_harmless` tests a model."""


@torch.inference_mode()
def generate(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    choose: Choose,
    advance: Advance,
) -> None:
    """Run `generate` greedily on the logits that `choose` returns, until `advance` reports that all rows have ended.

    Raises: any error of the model, `choose` or `advance`.
    """
    width = max(map(len, prompts))
    ids, mask = [], []
    for prompt in prompts:
        padding = width - len(prompt)
        pads, ones, zeros = [model.pad_token_id] * padding, [1] * len(prompt), [0] * padding
        # Decoders are padded on the left, because they continue at the end. Encoders are padded on the right, because
        # their positions count padding.
        ids.append([*prompt, *pads] if model.is_encoder_decoder else [*pads, *prompt])
        mask.append(ones + zeros if model.is_encoder_decoder else zeros + ones)
    inputs = {"input_ids": torch.tensor(ids, device=model.device)}
    if model.takes_mask:
        inputs["attention_mask"] = torch.tensor(mask, device=model.device)

    def stop(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return advance(input_ids)

    config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        use_cache=True,
        max_new_tokens=max_new_tokens,
        pad_token_id=model.pad_token_id,
    )
    model.module.generate(
        **inputs,
        generation_config=config,
        logits_processor=LogitsProcessorList([choose]),
        stopping_criteria=StoppingCriteriaList([stop]),
    )


def padding_is_harmless(model: LoadedModel) -> bool:
    """Return whether a prompt has the same logits alone and padded next to a longer one.

    Some architectures, such as RWKV, accept an attention mask and ignore it.

    Raises:
        RequestFailed: the model's logits are not finite.
    """
    top = model.num_embeddings - 1
    short, long = ([min(i, top) for i in prompt] for prompt in (_SHORT, _LONG))
    alone = _logits(model, [short])[0]
    if not alone.amax().isfinite():
        raise RequestFailed("the model's output for a test prompt is not finite")
    padded = _logits(model, [short, long])[0]
    finite = alone.isfinite()  # a model may mask tokens with logits of -inf
    spread = (alone[finite] - alone[finite].mean()).abs().max()
    difference = (alone[finite] - padded[finite]).abs().max()
    tolerance = 1e-3 if model.module.dtype is torch.float32 else 0.15
    return bool(difference <= tolerance * spread + 1e-6)


def _logits(model: LoadedModel, prompts: list[list[int]]) -> torch.Tensor:
    """Return the logits of the second new token, which is computed with a KV cache: [num_prompts, vocab_size], fp32."""
    latest = torch.empty(0)

    def choose(input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        nonlocal latest
        latest = logits
        # Force the same first token in all rows, so that the logits of the second one can be compared.
        forced = torch.full_like(logits, -torch.inf)
        forced[:, 0] = 0.0
        return forced

    def never_end(input_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    generate(model, prompts, 2, choose, never_end)
    return latest
