"""Check before a benchmark that the server exists and is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from container.measure.bench.connection import cause_of, error_message
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.workload import BenchError

_PING_TIMEOUT_SECONDS = 5.0
_BETWEEN_PINGS_SECONDS = 0.25
_MAX_BODY_BYTES = 4096
_MAX_SHOWN = 200


def server_url(text: str) -> str:
    """Check a server's URL and return it without a trailing slash. Its path, if any, prefixes the server's paths.

    Raises BenchError.
    """
    example = "such as http://127.0.0.1:8080"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BenchError(
            f"URL: not the address of a server (got {text!r}); allowed: http:// or https://, {example}"
        )
    if parts.query or parts.fragment or parts.username is not None:
        raise BenchError(
            f"URL: unsupported parts (got {text!r}); allowed: scheme, host, port and path only, {example}"
        )
    url = text.rstrip("/")
    for dialect in DIALECTS.values():
        if url.endswith(dialect.path):
            server = url.removesuffix(dialect.path)
            raise BenchError(
                f"URL: give the server's address, {server}; --dialect {dialect.name} adds {dialect.path} itself"
            )
    return url


def wait_ready(url: str, seconds: float, say: Callable[[str], None]) -> None:
    """Wait until `GET /ping` returns 200, or 404 from a server without that path.

    Raises BenchError with the server's message if nothing listens or the server is not ready after `seconds`.
    """
    deadline = time.monotonic() + seconds
    reported = ""
    while True:
        trouble = _trouble(url)
        if not trouble:
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            waited = f" after {seconds:g} s" if seconds else "; --wait SECONDS waits for it"
            raise BenchError(trouble + waited)
        if trouble != reported:
            say(f"{trouble}; waiting")
            reported = trouble
        time.sleep(min(_BETWEEN_PINGS_SECONDS, remaining))


def _trouble(url: str) -> str:
    """Return why the server is not ready; empty if it is."""
    try:
        with urllib3.PoolManager(timeout=_PING_TIMEOUT_SECONDS, retries=False) as pool:
            response = pool.request("GET", f"{url}/ping", preload_content=False, redirect=False)
            data = response.read(_MAX_BODY_BYTES)
            response.close()
    except NameResolutionError:
        return f"cannot resolve the host name of {url}"
    except NewConnectionError as error:
        return f"nothing listens at {url} ({cause_of(error)})"
    except (ReadTimeoutError, ConnectTimeoutError):
        return f"{url}/ping did not respond within {_PING_TIMEOUT_SECONDS:g} s"
    except SSLError:
        return f"the TLS connection to {url} failed (an http:// address?)"
    except HTTPError as error:
        return f"{url}/ping does not answer ({type(error).__name__})"
    if response.status in (200, 404):
        return ""  # a server of another kind may have no /ping
    message = error_message(data)[:_MAX_SHOWN]
    return f"{url} is not ready: /ping answers {response.status}{f', {message}' if message else ''}"
