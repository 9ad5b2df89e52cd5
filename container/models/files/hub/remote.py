"""A model of a Hugging Face hub, read at one commit. Imports huggingface_hub."""

from __future__ import annotations

import queue
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from container.models.files.base import DamagedContent, ModelNotAvailable, RemoteUnreachable
from container.models.files.hub import file as hub_file
from container.models.files.hub.errors import Asked, unavailable
from container.models.files.remote import RemoteFile, Report, Snapshot, Verification

_ANSWER_SECONDS = 6.0
"""For the listing, retries included: on a busy machine the start of the program takes the rest of 10 s."""
_WAITS = (0.5, 1.0)
"""Seconds before the second and the third attempt at the listing."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(slots=True)
class HubRemote:
    """One model at one revision. `snapshot` pins the commit that `fetch` then reads."""

    asked: Asked
    with_code: bool = False
    _commit: str = field(default="", init=False)

    @property
    def name(self) -> str:
        """`owner/name@revision`."""
        return self.asked.name

    def snapshot(self) -> Snapshot:
        """All files of the commit that the revision names now. Raises as `Remote.snapshot` says."""
        # Else the library tells the hub about this machine, and asks it first, over the network, what to tell.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        info = self._answer()
        if info.sha is None or not _COMMIT.fullmatch(info.sha) or info.siblings is None:
            raise unavailable(ValueError("a listing without commit and files"), self.asked)
        self._commit = info.sha
        files = tuple(self._file(sibling) for sibling in info.siblings)
        return Snapshot(self.name, files, self.with_code)

    def _file(self, sibling: RepoSibling) -> RemoteFile:
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if size is None:
            raise unavailable(ValueError(f"a listing without the size of {sibling.rfilename}"), self.asked)
        version = (
            hub_file.SHA256 + sibling.lfs.sha256 if sibling.lfs else hub_file.GIT + (sibling.blob_id or "")
        )
        return RemoteFile(sibling.rfilename, size, version)

    def _answer(self) -> ModelInfo:
        """What the hub says of the model, waited for no longer than `_ANSWER_SECONDS`.

        Asked in a thread: a name that no server resolves blocks for longer than any time-out of a connection.
        """
        answers: queue.SimpleQueue[ModelInfo | ModelNotAvailable] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._ask())
            except ModelNotAvailable as error:
                answers.put(error)

        threading.Thread(target=ask, name="hub listing", daemon=True).start()
        try:
            answer = answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            raise unavailable(httpx2.TimeoutException("no answer"), self.asked) from None
        if isinstance(answer, ModelNotAvailable):
            raise answer
        return answer

    def _ask(self) -> ModelInfo:
        """Ask until there is an answer. Raises: ModelNotAvailable."""
        api = HfApi(endpoint=self.asked.endpoint, library_name=hub_file.LIBRARY)
        until = time.monotonic() + _ANSWER_SECONDS
        waits = list(_WAITS)
        while True:
            timeout = max(until - time.monotonic() - 0.5, 0.1)
            try:
                return api.model_info(
                    self.asked.repo_id, revision=self.asked.revision, files_metadata=True, timeout=timeout
                )
            except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled) as error:
                failure = unavailable(error, self.asked)
                again = isinstance(failure, RemoteUnreachable) and not isinstance(error, OfflineModeIsEnabled)
                if not again or not waits or until - time.monotonic() < waits[0] + 1:
                    raise failure from error
                time.sleep(waits.pop(0))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise unavailable(error, self.asked) from error  # an answer, but not a hub's

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        """As `Remote.fetch` says."""
        began_with = hub_file.size_of(target)
        hub_file.complete(self.asked, self._commit, file, target, report)
        try:
            return self.verify(file, target)
        except DamagedContent:
            target.unlink()
            if not began_with:
                raise
        # The damage may be in what an earlier attempt has left behind.
        report(-file.size)
        hub_file.complete(self.asked, self._commit, file, target, report)
        try:
            return self.verify(file, target)
        except DamagedContent:
            target.unlink()
            raise

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """By the sha256 of LFS files, by git's blob id of others."""
        kind, _, expected = file.version.partition(":")
        if not expected:
            return Verification("", "the hub tells only its size")
        if wrong := hub_file.difference(file, path):
            raise DamagedContent(f"{self.name}: {file.path} is damaged: {wrong}")
        return Verification("sha256" if f"{kind}:" == hub_file.SHA256 else "git's blob id")
