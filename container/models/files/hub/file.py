"""Fetch and verify one file of a hub's repository.

Uses HTTP ranges in huggingface_hub's session: its own `hf_hub_download` starts a file again after an interruption
longer than its retries, and its other transport (xet) keeps caches of its own and needs further hosts.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import httpx2
from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from container.models.errors import ModelNotAvailable, RemoteUnreachable
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.remote import RemoteFile, Report
from container.models.files.retry import RetryBudget

LIBRARY = "lmi-server"
"""Name of the client in requests."""
SHA256, GIT = "sha256:", "git:"
"""Prefixes of `RemoteFile.version`: the rest is the content's sha256, or git's blob id."""

_SILENCE_SECONDS = 3.0
"""Limit for connecting and between two reads; short enough for a second attempt within the retry budget."""
_MOST_CONNECTIONS = 1000
_BLOCK_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def complete(address: HubAddress, commit: str, file: RemoteFile, target: Path, report: Report) -> None:
    """Fetch the missing bytes of `target`. Raises as `Remote.fetch`."""
    if size_of(target) > file.size:
        target.unlink()
    target.touch()
    report(size_of(target))
    budget = RetryBudget()
    failures = 0
    for _ in range(_MOST_CONNECTIONS):
        have, began = size_of(target), time.monotonic()
        if have == file.size:
            return
        failure = _read_on(address, commit, file, target, report, budget)
        came = size_of(target) - have
        failures = 1 if came else failures + 1
        # A connection that transferred bytes says nothing about how long the next one takes to fail.
        if size_of(target) < file.size and not budget.again(time.monotonic() if came else began, failures):
            raise failure
    raise RemoteUnreachable(f"{address.name}: {file.path}: {_MOST_CONNECTIONS} connections broke")


def _read_on(
    address: HubAddress, commit: str, file: RemoteFile, target: Path, report: Report, budget: RetryBudget
) -> RemoteUnreachable:
    """Append the bytes of one connection to `target`; returns why it ended early.

    Raises: ModelNotAvailable for permanent errors.
    """
    url = hf_hub_url(address.repo_id, file.path, revision=commit, endpoint=address.endpoint)
    headers = build_hf_headers(library_name=LIBRARY) | {"Accept-Encoding": "identity"}
    have = size_of(target)
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = httpx2.Timeout(_SILENCE_SECONDS)
    try:
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            begin = _begin(address, file, response)
            if begin not in (0, have):
                raise unavailable(
                    ValueError(f"asked for byte {have}, got bytes from {begin}"), address, file.path
                )
            with target.open("r+b") as out:
                out.truncate(begin)
                out.seek(begin)
                report(begin - have)
                room = file.size - begin
                for block in response.iter_bytes():
                    out.write(block[:room])
                    report(min(len(block), room))
                    budget.progress()
                    room -= min(len(block), room)
                    if not room:
                        break
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        failure = unavailable(error, address, file.path)
        if not isinstance(failure, RemoteUnreachable):
            raise failure from error
        return failure
    return RemoteUnreachable(
        f"{address.name}: {file.path}: the connection to {address.endpoint} ended too early"
    )


def _begin(address: HubAddress, file: RemoteFile, response: httpx2.Response) -> int:
    """The first byte of the answer. Raises ModelNotAvailable when the file's size differs from the listed one."""
    begin, size = 0, response.headers.get("Content-Length", "")
    if response.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None:
            raise unavailable(ValueError("a part without Content-Range"), address, file.path)
        begin, size = int(found[1]), found[2]
    if size.isdecimal() and int(size) != file.size:
        raise ModelNotAvailable(f"{address.name}: {file.path} has {size} bytes; {file.size} were listed")
    return begin


def difference(file: RemoteFile, path: Path) -> str:
    """How the content of `path` differs from what the hub lists; else empty."""
    kind, _, expected = file.version.partition(":")
    if not expected:
        return ""
    if f"{kind}:" == SHA256:
        digest, name = hashlib.sha256(), "sha256"
    else:
        digest, name = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), "git blob id"
    with path.open("rb") as content:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
    found = digest.hexdigest()
    return "" if found == expected else f"its {name} is {found}, the hub lists {expected}"


def size_of(path: Path) -> int:
    """Bytes; 0 where there is no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
