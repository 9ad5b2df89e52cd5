"""What a server says of itself when it is ready: a curl line that works, where the time went, and one line of facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from engines.core import EngineInfo

_QUESTION = "What is the capital of France?"


def has_chat_template(model_path: Path) -> bool:
    """Whether the model's folder brings a chat template. Of a file that is no JSON the web server reports."""
    if (model_path / "chat_template.jinja").is_file():
        return True
    config = model_path / "tokenizer_config.json"
    try:
        return config.is_file() and "chat_template" in json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return False


def curl_line(port: int, chat: bool) -> str:
    """Write a request that gets the same answer every time, to be pasted into a shell on this machine."""
    body: dict[str, object] = {"inputs": _QUESTION, "parameters": {"max_new_tokens": 32, "temperature": 0}}
    if chat:
        body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64, "temperature": 0}
    return f"curl -s http://127.0.0.1:{port}/invocations -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _seconds(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())


def time_line(total: float, before: Mapping[str, float], engine: Mapping[str, float]) -> str:
    """Where the start-up time went. before: the supervisor's own parts; engine: the engine's."""
    return f"start-up took {total:.1f} s: {_seconds(before)}; in the engine: {_seconds(engine)}"


def ready_line(info: EngineInfo, address: str) -> str:
    if info.engine == "Python":
        return (
            f"ready: model={info.model} engine=Python batches of up to {info.max_num_seqs} device={info.device} "
            f"dtype={info.dtype} at {address}"
        )
    ranks = f"{info.world_size} rank" + ("s" if info.world_size != 1 else "")
    mebibytes = info.kv_capacity_bytes / (1 << 20)
    return (
        f"ready: model={info.model} engine={info.engine} {ranks} device={info.device} dtype={info.dtype} "
        f"KV cache {info.kv_capacity_tokens} tokens in {info.kv_capacity_bytes} bytes ({mebibytes:.0f} MiB) "
        f"at {address}"
    )
