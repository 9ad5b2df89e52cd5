"""Check the server on this device: `/ping` while it starts, tokens, a drain, the death of the engine, and
engine=Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.gpu import oracle
from tests.gpu.context import Context
from tests.gpu.engine import random_prompts
from tests.gpu.parts.engine import greedy_but_for_rounding
from tests.gpu.shapes import reduced
from tests.support.client import ClientRequest, Ending, Outcome
from tests.support.server import Server, properties_text

MODEL = "llama-3-8b"
_START_SECONDS = 40.0
"""Time that the start of a server and its requests may take."""
_PING_SECONDS = 1.0
_END_SECONDS = 20.0
_OUTPUT_TOKENS = (48, 4)
"""In a real run and in a smoke run."""


@dataclass(frozen=True, slots=True)
class Model:
    folder: Path
    oracle: Any
    prompts: Sequence[Sequence[int]]


def check(context: Context) -> None:
    model = _make_model(context)
    for title, check_one in (
        ("engine=MPI, start, tokens and drain", _check_rolling),
        ("engine=MPI, death of the engine", _check_death),
        ("engine=Python", _check_dynamic),
    ):
        if context.has_time_for(_START_SECONDS, title):
            with context.results.guard(title):
                check_one(context, model)


def _make_model(context: Context) -> Model:
    """Save a small model with random weights, and a tokenizer whose token 7 is the word `w7`."""
    # Long enough for a stream that still runs when its engine is killed.
    config = reduced(MODEL, context.smoke) | {"max_position_embeddings": 4096}
    folder = context.folder / "model"
    oracle.save(config, folder, context.device)
    words = {_word(token): token for token in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=_word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    lengths = context.size((3, 300, 1, 47, 130, 64, 16, 700), (3, 18))
    prompts = random_prompts(config["vocab_size"], lengths, seed=4)
    return Model(folder, oracle.load(folder, torch.float32, context.device), prompts)


def _word(token: int) -> str:
    return f"w{token}"


def _ask(prompt: Sequence[int], count: int, stream: bool) -> ClientRequest:
    parameters = {"max_new_tokens": count, "ignore_eos_token": True}
    return ClientRequest(" ".join(map(_word, prompt)), parameters, stream)


@contextmanager
def _started(context: Context, name: str, model: Model, engine: str, **options: object) -> Iterator[Server]:
    """Start a server and wait until it is ready. Its processes are killed at the end."""
    properties = properties_text(model.folder, engine, dtype="fp32", **options)
    server = Server(context.folder / name, properties)
    try:
        answered: list[float] = []
        while True:
            asked = time.monotonic()
            status = server.client.ping(timeout=30.0)
            if status:
                answered.append(time.monotonic() - asked)
            if status == 200:
                break
            if server.process.poll() is not None or context.deadline.passed:
                raise AssertionError(f"the server did not start: {server.log_tail()}")
            time.sleep(0.05)
        seconds = server.wait_ready()
        context.results.figure(f"{name}: ready", seconds, "s", "after its start")
        # The first one waits for the start of the web process.
        slowest = max(answered[1:], default=0.0)
        note = f"{len(answered)} answers, slowest {slowest:.3f} s"
        context.results.check(f"{name}: /ping answers while the model loads", slowest <= _PING_SECONDS, note)
        yield server
    finally:
        server.destroy()


def _check_tokens(context: Context, name: str, server: Server, model: Model) -> None:
    """Run all prompts at once, half of them streamed."""
    count = context.size(*_OUTPUT_TOKENS)
    asks = [_ask(prompt, count, stream=i % 2 == 0) for i, prompt in enumerate(model.prompts)]
    with ThreadPoolExecutor(len(asks)) as pool:
        outcomes = list(pool.map(server.client.outcome, asks))
    wrong = [
        f"{i}: {outcome.describe()}"
        for i, (prompt, outcome) in enumerate(zip(model.prompts, outcomes, strict=True))
        if outcome.ending is not Ending.COMPLETE
        or not greedy_but_for_rounding(model.oracle, prompt, outcome.token_ids, count)
    ]
    context.results.check(f"{name}: tokens of {len(asks)} requests at once", not wrong, "; ".join(wrong))


def _interrupted(
    server: Server, prompt: Sequence[int], count: int, interrupt: Callable[[], object]
) -> Outcome:
    """Stream `count` tokens. Call `interrupt` after the first one."""
    outcome = Outcome()
    with (
        server.client.call("POST", "/invocations", _ask(prompt, count, stream=True).body()) as call,
        closing(server.client.follow(call, outcome)) as records,
    ):
        next(records)
        interrupt()
        for _ in records:
            pass
    return outcome


def _check_rolling(context: Context, model: Model) -> None:
    """SIGTERM arrives while a stream runs: it ends as if nothing had happened."""
    with _started(context, "engine=MPI", model, "MPI", kv_cache_gb=context.size(1, 0.01)) as server:
        _check_tokens(context, "engine=MPI", server, model)
        count = context.size(400, 200)
        outcome = _interrupted(server, model.prompts[0], count, server.process.terminate)
        code, left = server.wait_exit(_END_SECONDS), server.leftover_processes(_END_SECONDS)
        passed = outcome.ending is Ending.COMPLETE and len(outcome.token_ids) == count and code == 0
        note = f"{outcome.describe()}, exit code {code}, processes left: {left or 'none'}"
        context.results.check("engine=MPI: SIGTERM during a stream", passed and not left, note)


def _check_death(context: Context, model: Model) -> None:
    """Kill the engine during a stream: the client gets an error, the server ends, and its memory on the device is
    free."""
    before = _used_bytes(context)
    options = {"kv_cache_gb": context.size(1, 0.01)}
    with _started(context, "engine=MPI, killed", model, "MPI", **options) as server:
        outcome = _interrupted(server, model.prompts[0], 2000, server.ranks()[0].kill)
        code, left = server.wait_exit(_END_SECONDS), server.leftover_processes(_END_SECONDS)
    passed = outcome.ending is Ending.ERROR and code not in (None, 0) and not left
    note = f"{outcome.describe()}, exit code {code}, processes left: {left or 'none'}"
    context.results.check("engine=MPI: SIGKILL of the engine during a stream", passed, note)
    leaked = _used_bytes(context) - before
    context.results.check(
        "engine=MPI: memory of a killed engine is free", leaked < 100e6, f"{leaked / 1e6:.0f} MB more"
    )


def _check_dynamic(context: Context, model: Model) -> None:
    with _started(context, "engine=Python", model, "Python", batch_size=4, max_batch_delay=50) as server:
        _check_tokens(context, "engine=Python", server, model)
        server.stop(_END_SECONDS)


def _used_bytes(context: Context) -> int:
    """Return the bytes of the device's memory that all processes use."""
    if context.device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(context.device)
    return total - free
