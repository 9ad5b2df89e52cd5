"""Tiny models, and a batch runner whose outputs are recorded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from engines.core import Request, RequestOutput, SamplingParams
from engines.python.batch_runner import BatchRunner
from engines.python.heartbeat_hook import HeartbeatHook, clamp_positions
from engines.python.messages import BatchWaste
from engines.python.model import describe
from tests.support.tiny_architectures import CONTEXT, make_model

FAR = 600.0
"""Timeout in seconds that is never reached."""


@dataclass
class RecordedOutputs:
    """Recorder of a batch's outputs. `leave` maps requests to the number of tokens after which they are aborted."""

    leave: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    """Requests of each call of `generate`."""
    num_steps: int = 0
    waste: BatchWaste | None = None

    def step(self, outputs: list[RequestOutput]) -> Collection[str]:
        self.num_steps += 1
        for output in outputs:
            assert not any(o.finished for o in self.outputs.get(output.id, [])), (
                "an output after the last one"
            )
            self.outputs.setdefault(output.id, []).append(output)
        return [name for name, count in self.leave.items() if len(self.tokens(name)) >= count]

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs.get(name, []) for token in output.token_ids]

    def end(self, name: str) -> RequestOutput:
        return self.outputs[name][-1]


class Runner:
    """A model prepared like in the generating process."""

    def __init__(
        self, model: Any, clock: Any = time.monotonic, takes_mask: bool = True, seconds: float = FAR
    ) -> None:
        self.model = model
        self.num_beats = 0
        self.clock = clock
        heartbeat = HeartbeatHook(self._beat, clock)
        heartbeat.attach(model)
        clamp_positions(model, CONTEXT)
        self.generation = BatchRunner(replace(describe(model), takes_mask=takes_mask), heartbeat, seconds)

    def _beat(self) -> None:
        self.num_beats += 1

    def run(self, requests: Sequence[Request], heard: RecordedOutputs | None = None) -> RecordedOutputs:
        heard = heard or RecordedOutputs()
        heard.waste = self.generation.run(requests, heard.step, heard.calls.append)
        return heard


class StepClock:
    """A clock that advances by one second with each call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(scope="session")
def llama() -> Any:
    """A model without hooks, for unbatched reference outputs."""
    return make_model("llama")


@pytest.fixture
def runner() -> Runner:
    return Runner(make_model("llama"))


def request(name: str, prompt: Sequence[int], max_new_tokens: int = 8, **sampling: Any) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_new_tokens=max_new_tokens, **sampling), 0.0)


def generate(model: Any, prompt: list[int], max_new_tokens: int, **fields: Any) -> list[int]:
    """Return the tokens that transformers generates for one prompt. fields: of `GenerationConfig`."""
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **fields)
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    tokens: list[int] = output[0, start:].tolist()
    return tokens


def break_in_step(runner: Runner, step: int) -> None:
    """Raise once, in the n-th forward pass from now on."""
    calls = itertools.count(1)

    def check(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        if next(calls) == step:
            raise MemoryError("once")

    runner.model.register_forward_pre_hook(check, with_kwargs=True)
