"""Scripted servers, and requests for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.measure.bench.workload import BenchRequest, load_tokenizer
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.lmi_server.fakes import build_model_folder

StartScripted = Callable[..., ScriptedServer]


@pytest.fixture
def scripted() -> Iterator[StartScripted]:
    """Start servers: `scripted(planner)`. Without a planner, all requests succeed immediately."""
    with ExitStack() as stack:
        yield lambda plan=lambda number, body: Script(), **more: stack.enter_context(
            ScriptedServer(plan, **more)
        )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small byte-level tokenizer that has few whole words."""
    return build_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


def make_bench_requests(count: int, output_tokens: int = 4, prompt_tokens: int = 3) -> list[BenchRequest]:
    """`prompt_tokens`: words of each prompt, as the scripted server counts words."""
    return [
        BenchRequest(number, " ".join([f"w{number}"] * prompt_tokens), prompt_tokens, output_tokens)
        for number in range(count)
    ]
