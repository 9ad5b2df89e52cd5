"""Output of `lmi serve` once the server is ready."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from container.run import announce
from engines.core import EngineInfo

QUESTION = "What is the capital of France?"
INFO = EngineInfo("m", "MPI", 2, "cpu", "fp32", 1000, 2 << 20, 16, 32, 512, True)


@pytest.mark.parametrize(
    ("chat", "body"),
    [
        (True, {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, "temperature": 0}),
        (False, {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "temperature": 0}}),
    ],
)
def test_the_curl_line_is_valid_shell(chat: bool, body: dict[str, Any]) -> None:
    words = shlex.split(announce.curl_line("127.0.0.1", 8081, chat))
    assert words[0] == "curl"
    assert "http://127.0.0.1:8081/invocations" in words
    assert json.loads(words[words.index("-d") + 1]) == body


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("10.0.0.5", "10.0.0.5"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
    ],
)
def test_the_curl_line_names_an_address_on_which_the_server_listens(host: str, shown: str) -> None:
    words = shlex.split(announce.curl_line(host, 8081, chat=True))
    assert f"http://{shown}:8081/invocations" in words


def test_a_chat_template_is_found_in_either_file(tmp_path: Path) -> None:
    assert not announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert not announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert announce.has_chat_template(tmp_path)


@pytest.mark.parametrize(("copies", "ranks"), [(1, "2 ranks"), (3, "3 copies, each of 2 ranks")])
def test_the_ready_line(copies: int, ranks: str) -> None:
    assert announce.ready_line(INFO, "http://0.0.0.0:8080", copies) == (
        f"ready: model=m engine=MPI {ranks} device=cpu dtype=fp32 "
        "KV cache 1000 tokens in 2097152 bytes (2 MiB) at http://0.0.0.0:8080"
    )
