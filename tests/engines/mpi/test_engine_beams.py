"""Beam search of the whole engine against transformers, with other requests running."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engines.core import FinishReason, Request, SamplingParams
from tests.engines.conftest import Answer
from tests.engines.mpi.conftest import StartEngine
from tests.support.engine_process import collect, make_config, tokens_of

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
    ("paged", "policy", "prefix_caching"),
    [
        (True, "max_utilization", True),
        pytest.param(False, "guaranteed_no_evict", False, marks=pytest.mark.long),
    ],
)
def test_beam_search_returns_the_tokens_of_transformers(
    paged: bool,
    policy: str,
    prefix_caching: bool,
    tiny_llama: Path,
    answers: list[Answer],
    start_engine: StartEngine,
) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    engine = start_engine(
        make_config(tiny_llama, paged=paged, policy=policy, prefix_caching=prefix_caching, num_blocks=60)
    )
    prompts = [answer.prompt for answer in answers if len(answer.prompt) <= 33]
    searches = [(prompt, case) for prompt in prompts[::3] for case in _CASES]
    streams = []
    for i, (prompt, case) in enumerate(searches):
        request = Request(f"beams {i}", prompt, case.sampling(), time.monotonic())
        streams.append(engine.client.submit(request))
    plain = [engine.submit(f"plain {i}", one.prompt, len(one.tokens)) for i, one in enumerate(answers[::4])]
    endings = set()
    for (prompt, case), stream in zip(searches, streams, strict=True):
        outputs = collect(stream)
        assert len(outputs) == 1
        assert outputs[0].token_ids == _by_transformers(model, prompt, case), case
        endings.add(outputs[0].finish_reason)
    assert endings == {FinishReason.EOS_TOKEN, FinishReason.LENGTH}
    for answer, stream in zip(answers[::4], plain, strict=True):
        assert tuple(tokens_of(collect(stream))) == answer.tokens
    gauges = engine.stats().gauges
    assert gauges["lmi_kv_blocks_free"] + gauges["lmi_kv_blocks_cached"] == 60
