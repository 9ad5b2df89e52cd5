"""Output of `lmi serve` once the server is ready."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from container.run import announce
from engines.core import EngineInfo

INFO = EngineInfo("m", "MPI", 2, "cpu", "fp32", 1000, 2 << 20, 16, 32, 512, True)


def test_the_curl_line_is_valid_shell() -> None:
    words = shlex.split(announce.curl_line(8081, chat=True))
    assert words[0] == "curl"
    assert "http://127.0.0.1:8081/invocations" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["messages"] == [{"role": "user", "content": "What is the capital of France?"}]
    assert body["temperature"] == 0, "greedy, for a reproducible answer"


def test_the_curl_line_uses_inputs_without_a_chat_template() -> None:
    words = shlex.split(announce.curl_line(8080, chat=False))
    body = json.loads(words[words.index("-d") + 1])
    assert body["inputs"] == "What is the capital of France?"
    assert body["parameters"]["temperature"] == 0


def test_a_chat_template_is_found_in_either_file(tmp_path: Path) -> None:
    assert not announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert not announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert announce.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert announce.has_chat_template(tmp_path)


def test_the_ready_line_is_one_line_with_all_settings() -> None:
    line = announce.ready_line(INFO, "http://0.0.0.0:8080")
    assert "\n" not in line
    for setting in (
        "model=m",
        "engine=MPI",
        "2 ranks",
        "device=cpu",
        "dtype=fp32",
        "1000 tokens",
        "2097152 bytes",
        ":8080",
    ):
        assert setting in line


def test_the_ready_line_includes_the_number_of_copies() -> None:
    assert "engine=MPI 3 copies, each of 2 ranks device=cpu" in announce.ready_line(INFO, ":8080", copies=3)
    assert "copies" not in announce.ready_line(INFO, ":8080")
