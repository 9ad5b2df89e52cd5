"""Before any load: is there a server, and is it ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError

from container.measure.bench.connection import cause_of
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.errors import BenchError

_PING_TIMEOUT_SECONDS = 5.0
_BETWEEN_PINGS_SECONDS = 0.25
_MAX_BODY_BYTES = 4096
_MAX_SHOWN = 200


def server_url(text: str) -> str:
    """A server's URL without a slash at its end; a path in it is where the server's own paths begin.

    Raises: BenchError.
    """
    example = "such as http://127.0.0.1:8080"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BenchError(f"URL: given {text!r}; accepted: a server's http:// or https:// address, {example}")
    if parts.query or parts.fragment or parts.username is not None:
        raise BenchError(f"URL: given {text!r}; accepted: scheme, host, port and path only, {example}")
    url = text.rstrip("/")
    for dialect in DIALECTS.values():
        if url.endswith(dialect.path):
            server = url.removesuffix(dialect.path)
            raise BenchError(
                f"URL: give the server's address, {server}; --dialect {dialect.name} adds {dialect.path} itself"
            )
    return url


def wait_ready(url: str, seconds: float, say: Callable[[str], None]) -> None:
    """Return when `GET /ping` answers 200, or when the server has no such path. Tries for so many seconds.

    Raises: BenchError when nothing listens, or when it is not ready, with what it said.
    """
    deadline = time.monotonic() + seconds
    told = ""
    while True:
        trouble = _trouble(url)
        if not trouble:
            return
        left = deadline - time.monotonic()
        if left <= 0:
            waited = f" after {seconds:g} s" if seconds else "; --wait SECONDS waits for it"
            raise BenchError(trouble + waited)
        if trouble != told:
            say(f"{trouble}; waiting")
            told = trouble
        time.sleep(min(_BETWEEN_PINGS_SECONDS, left))


def _trouble(url: str) -> str:
    """Why the server cannot be used now; empty when it can."""
    try:
        with urllib3.PoolManager(timeout=_PING_TIMEOUT_SECONDS, retries=False) as pool:
            response = pool.request("GET", f"{url}/ping", preload_content=False, redirect=False)
            data = response.read(_MAX_BODY_BYTES)
            response.close()
    except NewConnectionError as error:
        return f"nothing listens at {url} ({cause_of(error)})"
    except HTTPError as error:
        return f"{url}/ping does not answer ({type(error).__name__})"
    if response.status in (200, 404):
        return ""  # a server of another kind may have no /ping
    return f"{url} is not ready: /ping answers {response.status}{_said(data)}"


def _said(data: bytes) -> str:
    """The reason in the body of /ping: the field `reason`, else the text."""
    try:
        said = msgspec.json.decode(data)
    except ValueError:
        said = data.decode("utf-8", "replace").strip()
    if isinstance(said, dict):
        said = said.get("reason") or said
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return f", {text[:_MAX_SHOWN]}" if text else ""
