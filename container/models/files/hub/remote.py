"""A model of a Hugging Face hub, read at one commit. Imports huggingface_hub."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from container.models.errors import DamagedContent, ModelNotAvailable, RemoteUnreachable
from container.models.files.hub import file as hub_file
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.remote import RemoteFile, Report, Verification

_ANSWER_SECONDS = 6.0
"""Time limit of the listing with its retries: on a busy machine the program needs the rest of 10 s to start."""
_WAITS = (0.5, 1.0)
"""Seconds before the second and the third attempt at the listing."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
        """All files of the commit that the revision names now. Raises as `Remote.list_files`."""
        # Otherwise the library sends the hub facts about this machine, and asks it first which ones.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        info = self._answer()
        if info.sha is None or not _COMMIT.fullmatch(info.sha) or info.siblings is None:
            raise unavailable(ValueError("a listing without commit and files"), self.address)
        self._commit = info.sha
        return tuple(self._file(sibling) for sibling in info.siblings)

    def _file(self, sibling: RepoSibling) -> RemoteFile:
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if size is None:
            raise unavailable(ValueError(f"a listing without the size of {sibling.rfilename}"), self.address)
        version = (
            hub_file.SHA256 + sibling.lfs.sha256 if sibling.lfs else hub_file.GIT + (sibling.blob_id or "")
        )
        return RemoteFile(sibling.rfilename, size, version)

    def _answer(self) -> ModelInfo:
        """The hub's answer within `_ANSWER_SECONDS`.

        Requested in a thread: resolving an unknown host name blocks for longer than any connection time-out.
        """
        answer: Future[ModelInfo] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._ask())
            except ModelNotAvailable as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="hub listing", daemon=True).start()
        try:
            return answer.result(timeout=_ANSWER_SECONDS)
        except TimeoutError:
            raise unavailable(httpx2.TimeoutException("no answer"), self.address) from None

    def _ask(self) -> ModelInfo:
        """Retry until there is an answer. Raises: ModelNotAvailable."""
        api = HfApi(endpoint=self.address.endpoint, library_name=hub_file.LIBRARY)
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
                raise unavailable(error, self.address) from error  # not the answer of a hub

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        resumed = hub_file.size_of(target) > 0
        hub_file.complete(self.address, self._commit, file, target, report)
        try:
            return self.verify(file, target)
        except DamagedContent:
            target.unlink()
            if not resumed:
                raise
        # The damage may be in the bytes of an earlier attempt: fetch it all once more.
        report(-file.size)
        return self.fetch(file, target, report)

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare the sha256 of LFS files, and git's blob id of others."""
        kind, _, expected = file.version.partition(":")
        if not expected:
            return Verification("", "the hub has only its size")
        if wrong := hub_file.difference(file, path):
            raise DamagedContent(f"{self.name}: {file.path} is damaged: {wrong}")
        return Verification("sha256" if f"{kind}:" == hub_file.SHA256 else "git's blob id")
