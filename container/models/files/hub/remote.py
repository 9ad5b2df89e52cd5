"""A model of a Hugging Face hub, read at one commit. Imports huggingface_hub.

Files are read as HTTP ranges in huggingface_hub's session. `hf_hub_download` would start a file again after an
interruption longer than its retries, and its other transport (xet) keeps its own caches and needs further hosts.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from container.models.errors import DamagedContent, ModelNotAvailable, RemoteUnreachable
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.remote import RemoteFile, Report, Verification
from container.models.files.retry import RetryBudget

_ANSWER_SECONDS = 6.0
"""Time limit of the listing with its retries. On a busy machine the program needs the rest of 10 s to start."""
_WAITS = (0.5, 1.0)
"""Seconds before the second and the third attempt at the listing."""
_SILENCE_SECONDS = 3.0
"""Time limit for connecting and between two reads, short enough for a second attempt within the retry budget."""
_MAX_CONNECTIONS = 1000
_BLOCK_BYTES = 1 << 20
_LIBRARY = "lmi-server"
"""Name of the client in requests."""
_SHA256 = "sha256:"
"""Prefix of a `RemoteFile.version` that is the content's sha256. Other versions are git blob ids."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@dataclass(slots=True)
class HubRemote:
    """One model at one revision. `list_files` sets the commit that `fetch` then reads."""

    address: HubAddress
    _commit: str = field(default="", init=False)

    @property
    def name(self) -> str:
        """`owner/name@revision`."""
        return self.address.name

    def list_files(self) -> tuple[RemoteFile, ...]:
        """Return all files of the commit that the revision names now. Raises the errors of `Remote.list_files`."""
        # Otherwise the library asks the hub which facts about this machine to send, and sends them.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        info = self._answer()
        if info.sha is None or not _COMMIT.fullmatch(info.sha) or info.siblings is None:
            raise unavailable(ValueError("the listing has no commit or no files"), self.address)
        self._commit = info.sha
        return tuple(self._file(sibling) for sibling in info.siblings)

    def _file(self, sibling: RepoSibling) -> RemoteFile:
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if size is None:
            raise unavailable(ValueError(f"the listing has no size for {sibling.rfilename}"), self.address)
        version = f"{_SHA256}{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id or ''}"
        return RemoteFile(sibling.rfilename, size, version)

    def _answer(self) -> ModelInfo:
        """Return the hub's response within `_ANSWER_SECONDS`.

        The request runs in a thread, because resolving an unknown host name may block longer than any timeout.
        """
        answer: Future[ModelInfo] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._ask())
            except Exception as error:
                # Settings of HTTP raise any error, such as FileNotFoundError for SSL_CERT_FILE.
                known = isinstance(error, ModelNotAvailable)
                answer.set_exception(error if known else unavailable(error, self.address))

        threading.Thread(target=ask, name="hub listing", daemon=True).start()
        try:
            return answer.result(timeout=_ANSWER_SECONDS)
        except TimeoutError:
            raise unavailable(httpx2.TimeoutException("no response"), self.address) from None

    def _ask(self) -> ModelInfo:
        """Request the listing, with retries. Raises: ModelNotAvailable."""
        api = HfApi(endpoint=self.address.endpoint, library_name=_LIBRARY)
        until = time.monotonic() + _ANSWER_SECONDS
        waits = list(_WAITS)
        while True:
            timeout = max(until - time.monotonic() - 0.5, 0.1)
            try:
                return api.model_info(
                    self.address.repo_id, revision=self.address.revision, files_metadata=True, timeout=timeout
                )
            except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled) as error:
                failure = unavailable(error, self.address)
                again = isinstance(failure, RemoteUnreachable) and not isinstance(error, OfflineModeIsEnabled)
                if not again or not waits or until - time.monotonic() < waits[0] + 1:
                    raise failure from error
                time.sleep(waits.pop(0))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise unavailable(error, self.address) from error  # not the response of a hub

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        resumed = _size_of(target) > 0
        self._complete(file, target, report)
        try:
            return self.verify(file, target)
        except DamagedContent:
            target.unlink()
            if not resumed:
                raise
        # The damage may be in the bytes of an earlier attempt: fetch the whole file once more.
        report(-file.size)
        return self.fetch(file, target, report)

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare the sha256 of LFS files, and the git blob id of other files."""
        kind, _, expected = file.version.partition(":")
        if not expected:
            return Verification("", "the hub provides no checksum, only the size")
        if f"{kind}:" == _SHA256:
            digest, name = hashlib.sha256(), "sha256"
        else:
            digest, name = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), "git blob id"
        with path.open("rb") as content:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
        if digest.hexdigest() != expected:
            raise DamagedContent(
                f"{self.name}: {file.path} is damaged: {name} is {digest.hexdigest()}, expected {expected}"
            )
        return Verification(name)

    def _complete(self, file: RemoteFile, target: Path, report: Report) -> None:
        """Fetch the missing bytes of `target`. Raises the errors of `Remote.fetch`."""
        if _size_of(target) > file.size:
            target.unlink()
        target.touch()
        report(_size_of(target))
        budget = RetryBudget()
        failures = 0
        for _ in range(_MAX_CONNECTIONS):
            have, began = _size_of(target), time.monotonic()
            if have == file.size:
                return
            failure = self._read_on(file, target, report, budget)
            received = _size_of(target) - have
            failures = 1 if received else failures + 1
            # A connection that transferred bytes says nothing about how long the next one takes to fail.
            began = time.monotonic() if received else began
            if _size_of(target) < file.size and not budget.wait_for_retry(began, failures):
                raise failure
        raise RemoteUnreachable(
            f"{self.name}: {file.path}: gave up after {_MAX_CONNECTIONS} lost connections"
        )

    def _read_on(
        self, file: RemoteFile, target: Path, report: Report, budget: RetryBudget
    ) -> RemoteUnreachable:
        """Append the bytes of one connection to `target`. Returns why the connection ended early.

        Raises: ModelNotAvailable for permanent errors.
        """
        address, have = self.address, _size_of(target)
        url = hf_hub_url(address.repo_id, file.path, revision=self._commit, endpoint=address.endpoint)
        headers = build_hf_headers(library_name=_LIBRARY) | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = httpx2.Timeout(_SILENCE_SECONDS)
        try:
            with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                hf_raise_for_status(response)
                begin = self._begin(file, response)
                if begin not in (0, have):
                    wrong = ValueError(f"requested byte {have}, got bytes from {begin}")
                    raise unavailable(wrong, address, file.path)
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
        return RemoteUnreachable(f"{self.name}: {file.path}: {address.shown} closed the connection too early")

    def _begin(self, file: RemoteFile, response: httpx2.Response) -> int:
        """Return the offset of the response's first byte. Raises ModelNotAvailable if the file's size has changed."""
        begin, size = 0, response.headers.get("Content-Length", "")
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None:
                raise unavailable(
                    ValueError("partial response without Content-Range"), self.address, file.path
                )
            begin, size = int(found[1]), found[2]
        if size.isdecimal() and int(size) != file.size:
            raise ModelNotAvailable(
                f"{self.name}: {file.path} has {size} bytes, but the listing has {file.size}"
            )
        return begin


def _size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
