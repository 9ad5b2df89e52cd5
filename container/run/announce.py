"""Output of a ready server: a working curl command, the parts of the start-up time, and a one-line summary."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from container.run.launch import base_url
from engines.core import EngineInfo
from lmi_server.text.template_files import DEFAULT, read_templates

_QUESTION = "What is the capital of France?"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""The loopback address, for a server that listens on all addresses."""


def has_chat_template(model_path: Path) -> bool:
    """Return whether the model's folder has a chat template. The web server reports invalid files."""
    try:
        return DEFAULT in read_templates(model_path)
    except ValueError:
        return False


def curl_line(host: str, port: int, chat: bool) -> str:
    """Return a curl command to paste into a shell on this machine. The response is the same every time.

    host: the numeric address on which the server listens.
    """
    body: dict[str, object] = {"inputs": _QUESTION, "parameters": {"max_new_tokens": 32, "temperature": 0}}
    if chat:
        body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64, "temperature": 0}
    url = shlex.quote(f"{base_url(_LOOPBACK.get(host, host), port)}/invocations")
    return f"curl -s {url} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _seconds(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())


def time_line(total: float, before: Mapping[str, float], engine: Mapping[str, float]) -> str:
    """Format the parts of the start-up time. before: parts in the supervisor; engine: parts in the engine."""
    return f"start-up took {total:.1f} s: {_seconds(before)}; engine: {_seconds(engine)}"


def ready_line(info: EngineInfo, address: str, copies: int = 1) -> str:
    """Return the one-line summary of a ready server. info: of the first copy."""
    if info.engine == "Handler":
        calls = "one request at a time" if info.max_num_seqs == 1 else f"batches of up to {info.max_num_seqs}"
        return f"ready: handler {info.model} with {info.world_size} worker(s), {calls}, at {address}"
    several = f"{copies} copies, each of " if copies > 1 else ""
    if info.engine == "Python":
        return (
            f"ready: model={info.model} engine=Python {several}batches of up to {info.max_num_seqs} "
            f"device={info.device} dtype={info.dtype} at {address}"
        )
    ranks = f"{several}{info.world_size} rank" + ("s" if info.world_size != 1 else "")
    mebibytes = info.kv_capacity_bytes / (1 << 20)
    return (
        f"ready: model={info.model} engine={info.engine} {ranks} device={info.device} dtype={info.dtype} "
        f"KV cache {info.kv_capacity_tokens} tokens in {info.kv_capacity_bytes} bytes ({mebibytes:.0f} MiB) "
        f"at {address}"
    )
