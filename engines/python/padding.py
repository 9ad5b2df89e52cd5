"""One call of transformers' `generate` for prompts of differing lengths, and whether a model can take such a call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from engines.errors import RequestFailed
from engines.python.model import Model

_SHORT, _LONG = (1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)
"""Prompts to try padding with."""
_TOLERANCE = {torch.float32: 1e-3}
_TOLERANCE_OF_HALF = 0.15


@torch.inference_mode()
def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    choose: LogitsProcessor,
    advance: StoppingCriteria,
) -> None:
    """Greedy but for what `choose` makes of the logits, until `advance` says that all rows have ended.

    Raises: whatever model, `choose` or `advance` raises.
    """
    width = max(map(len, prompts))
    ids, mask = [], []
    for prompt in prompts:
        padding = width - len(prompt)
        pads, ones, zeros = [model.pad_token_id] * padding, [1] * len(prompt), [0] * padding
        # A decoder goes on at the end. An encoder's positions count from the start, padding or not.
        ids.append([*prompt, *pads] if model.is_encoder_decoder else [*pads, *prompt])
        mask.append(ones + zeros if model.is_encoder_decoder else zeros + ones)
    inputs = {"input_ids": torch.tensor(ids, device=model.device)}
    if model.takes_mask:
        inputs["attention_mask"] = torch.tensor(mask, device=model.device)
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
        stopping_criteria=StoppingCriteriaList([advance]),
    )


def padding_is_harmless(model: Model) -> bool:
    """Whether a prompt gets the same logits alone and padded beside a longer one.

    Not every architecture that takes a mask heeds it: RWKV, for one, does not.

    Raises:
        RequestFailed: the model gives no numbers.
    """
    top = model.num_embeddings - 1
    short, long = ([min(i, top) for i in prompt] for prompt in (_SHORT, _LONG))
    alone = _logits(model, [short])[0]
    if not alone.amax().isfinite():
        raise RequestFailed("the model's output for a first try is not finite")
    padded = _logits(model, [short, long])[0]
    seen = alone.isfinite()  # a model may rule tokens out by logits of -inf
    spread = (alone[seen] - alone[seen].mean()).abs().max()
    difference = (alone[seen] - padded[seen]).abs().max()
    tolerance = _TOLERANCE.get(model.module.dtype, _TOLERANCE_OF_HALF)
    return bool(difference <= tolerance * spread + 1e-6)


def _logits(model: Model, prompts: list[list[int]]) -> torch.Tensor:
    """[num_prompts, vocab_size], fp32: those of the second new token, which rest on a cache."""
    record = _Record()
    generate(model, prompts, 2, record, _Never())
    return record.logits


class _Record(LogitsProcessor):
    """Keeps the last logits. The first token is one and the same for all, so that what follows can be compared."""

    def __init__(self) -> None:
        self.logits = torch.empty(0)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.logits = scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 0] = 0.0
        return forced


class _Never(StoppingCriteria):
    """Goes on to `max_new_tokens`."""

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
