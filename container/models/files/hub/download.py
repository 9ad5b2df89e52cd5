"""The download of one file from a hub, in one connection after the other. Imports huggingface_hub.

Files are read as HTTP ranges in huggingface_hub's session. `hf_hub_download` would start a file again after an
interruption longer than its retries, and its other transport (xet) keeps its own caches and needs further hosts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from container.models.errors import ModelNotAvailable, RemoteUnreachable
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.hub.settings import LIBRARY
from container.models.files.remote import RemoteFile, Report
from container.models.files.retry import RetryBudget, seconds_for_attempts

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@dataclass(slots=True)
class Download:
    """The download of a file into `target`, which may have bytes of an earlier attempt."""

    address: HubAddress
    url: str
    file: RemoteFile
    target: Path
    report: Report
    silence: float
    """Time limit in seconds for connecting and between two reads."""
    _budget: RetryBudget = field(init=False)
    _ranges: bool = field(default=True, init=False)
    """Whether the server supports ranges, as far as is known."""

    def __post_init__(self) -> None:
        self._budget = RetryBudget(seconds_for_attempts(self.silence))

    def run(self) -> None:
        """Fetch the missing bytes. Raises the errors of `Remote.fetch`."""
        if size_of(self.target) > self.file.size:
            self.target.unlink()
        self.target.touch()
        self.report(size_of(self.target))
        self._budget.run(self._read_on, lambda: size_of(self.target))

    @property
    def _where(self) -> str:
        return f"{self.address.name}: {self.file.path}"

    def _read_on(self) -> None:
        """Append the missing bytes, if any, to `target`, in one connection.

        Raises: RemoteUnreachable: the connection ended early; ModelNotAvailable for permanent errors.
        """
        if size_of(self.target) == self.file.size:
            return
        have = size_of(self.target) if self._ranges else 0
        headers = build_hf_headers(library_name=LIBRARY) | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = httpx2.Timeout(self.silence)
        try:
            with get_session().stream("GET", self.url, headers=headers, timeout=timeout) as response:
                hf_raise_for_status(response)
                begin = self._begin(response, have)
                if begin is not None and begin not in (0, have):
                    wrong = ValueError(f"requested byte {have}, got bytes from {begin}")
                    raise unavailable(wrong, self.address, self.file.path)
                if begin is not None:
                    self._write(response, begin)
        except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
            raise unavailable(error, self.address, self.file.path) from error
        if begin is None:
            self._ranges = False
            self._read_on()
        elif size_of(self.target) < self.file.size:
            raise RemoteUnreachable(f"{self._where}: {self.address.shown} closed the connection too early")

    def _begin(self, response: httpx2.Response, have: int) -> int | None:
        """Return the offset of the response's first byte; None if the response to a range does not have it.

        Raises: ModelNotAvailable: the file's size has changed, or this is no hub.
        """
        begin, size = 0, response.headers.get("Content-Length", "")
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None and have:
                return None
            if found is None:
                wrong = ValueError("partial response without Content-Range")
                raise unavailable(wrong, self.address, self.file.path)
            begin, size = int(found[1]), found[2]
        if size.isdecimal() and int(size) != self.file.size:
            raise ModelNotAvailable(f"{self._where} has {size} bytes, but the listing has {self.file.size}")
        return begin

    def _write(self, response: httpx2.Response, begin: int) -> None:
        """Write the bytes of the response, the first at `begin`, and drop what `target` has after them."""
        with self.target.open("r+b") as out:
            self.report(begin - size_of(self.target))
            out.truncate(begin)
            out.seek(begin)
            room = self.file.size - begin
            for block in response.iter_bytes():
                out.write(block[:room])
                self.report(min(len(block), room))
                self._budget.progress()
                room -= min(len(block), room)
                if not room:
                    return


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
