"""The listening socket, errors if the address cannot be used, and a note if few clients can be connected."""

from __future__ import annotations

import errno
import io
import re
import resource
import socket
from typing import Any

import pytest

from container.progress import LogLines
from container.run.serve import CannotListen, listen, raise_open_files


def test_a_used_port_is_reported() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        text = (
            f"cannot listen on port {port} of 127.0.0.1: another process uses it; choose another one with --port"
            " (for lmi serve also SAGEMAKER_BIND_TO_PORT)"
        )
        with pytest.raises(CannotListen, match=f"^{re.escape(text)}$"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "number", "text"),
    [
        (
            "0.0.0.0",
            errno.EACCES,
            "cannot listen on port 80: no permission; choose one from 1024 on with --port"
            " (for lmi serve also SAGEMAKER_BIND_TO_PORT)",
        ),
        (
            "10.0.0.99",
            errno.EADDRNOTAVAIL,
            "cannot listen on 10.0.0.99: Cannot assign requested address; --host must be an address of this machine,"
            " such as 0.0.0.0",
        ),
        (
            "localhots",
            socket.EAI_NONAME,
            "cannot listen on localhots: the host name cannot be resolved; --host must be an address of this machine,"
            " such as 0.0.0.0",
        ),
    ],
    ids=["privileged port", "address of another machine", "unknown name"],
)
def test_an_unusable_address_is_reported(
    host: str, number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> socket.socket:
        raise OSError(number, f"Text (while attempting to bind on address {args[0]!r})")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(CannotListen) as caught:
        listen(host, 80)
    assert str(caught.value) == text


def test_a_low_limit_of_open_files_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    log = io.StringIO()
    for hard in (256, 1024):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (128, hard))
        assert raise_open_files(LogLines(log)) == hard
    assert limits == [(256, 256), (1024, 1024)]
    assert log.getvalue() == (
        "note: a process may open only 256 files (ulimit -n), so only few clients can be connected at once; allow at"
        " least 1024\n"
    )
