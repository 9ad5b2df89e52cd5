"""Scripted servers and requests for them, a tokenizer, and a folder for derived configurations."""

from __future__ import annotations

import urllib.request
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


@pytest.fixture
def unreachable_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a proxy that refuses connections. Requests to this machine must not use it."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # an earlier test may have read the proxies
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A folder for derived configurations."""
    folder = tmp_path / "copies"
    folder.mkdir()
    return folder


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
