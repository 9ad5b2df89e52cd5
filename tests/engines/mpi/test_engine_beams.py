"""Beam search with a real model and its cache against transformers, with other requests running."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engines.core import Request, SamplingParams
from tests.engines.conftest import Answer
from tests.support.core_lab import CoreLab, Mode, greedy, run_all
from tests.support.engine_process import MAX_MODEL_LEN

_STOP = (3, 5, 8, 13, 21, 34, 55, 89, 144)
"""Many stop tokens, so that some of them occur."""


@dataclass(frozen=True, slots=True)
class _Case:
    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool = False
    repetition_penalty: float = 1.0
    stop: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=16,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            repetition_penalty=self.repetition_penalty,
            stop_token_ids=self.stop,
            min_new_tokens=self.min_new_tokens,
        )


_CASES = (
    _Case(2),
    _Case(4, repetition_penalty=1.4),
    _Case(4, stop=_STOP),
    _Case(3, length_penalty=2.0, stop=_STOP, repetition_penalty=1.2),
    _Case(5, early_stopping=True, stop=_STOP),
    _Case(2, stop=_STOP, min_new_tokens=6),
)


@torch.inference_mode()
def _by_transformers(model: LlamaForCausalLM, prompt: tuple[int, ...], case: _Case) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about options that are not in use
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=16,
            num_beams=case.num_beams,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
            repetition_penalty=case.repetition_penalty,
            eos_token_id=list(case.stop) or None,
            min_new_tokens=case.min_new_tokens or None,
            pad_token_id=0,
        )
    return tuple(result[0, len(prompt) :].tolist())


@pytest.mark.parametrize(
    "mode",
    [
        Mode(max_prefill_tokens=16),
        pytest.param(
            Mode("guaranteed_no_evict", paged=False, prefix_caching=False, max_prefill_tokens=16),
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)
def test_beam_search_returns_the_tokens_of_transformers(
    mode: Mode, tiny_llama: Path, tmp_path: Path, answers: list[Answer]
) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    prompts = [answer.prompt for answer in answers if len(answer.prompt) <= 33]
    searches = {f"beams {i}": search for i, search in enumerate(itertools.product(prompts[::3], _CASES))}
    plain = {f"plain {i}": answer for i, answer in enumerate(answers[::4])}
    requests = [Request(name, prompt, case.sampling(), 0.0) for name, (prompt, case) in searches.items()]
    requests += [greedy(name, one.prompt, len(one.tokens)) for name, one in plain.items()]
    lab = CoreLab(tiny_llama, tmp_path, block_size=8, num_blocks=60, max_model_len=MAX_MODEL_LEN)
    found = {name: tuple(tokens) for name, tokens in run_all(lab.start(mode), requests).items()}
    stopped = set()
    for name, (prompt, case) in searches.items():
        assert found[name] == _by_transformers(model, prompt, case), case
        stopped.add(found[name][-1] in case.stop)
    assert stopped == {True, False}
    for name, answer in plain.items():
        assert found[name] == answer.tokens
