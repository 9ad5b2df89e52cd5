"""A model of a Hugging Face hub, read at one commit. Imports huggingface_hub."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from container.models.errors import DamagedContent, ModelNotAvailable, RemoteUnreachable
from container.models.files import choice
from container.models.files.copies import copy_name
from container.models.files.hub import versions
from container.models.files.hub.download import Download, size_of
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.hub.settings import COMMIT, LIBRARY, TimeLimits
from container.models.files.hub.sizes import HeadReader
from container.models.files.remote import RemoteFile, Report, Selection, Snapshot, Verification
from container.models.files.retry import SHORT_WAIT_SECONDS, Throttled

_ANSWER_SECONDS = 6.0
"""Time limit of the listing with its retries. On a busy machine the program needs the rest of 10 s to start."""
_WAITS = (0.5, 1.0)
"""Seconds before the second and the third attempt at the listing."""
_SILENCE_SECONDS = 3.0
"""Time limit for connecting and between two reads, short enough for a second attempt within the retry budget."""


@dataclass(slots=True)
class HubRemote:
    """One model at one revision. `list_files` sets the commit that `fetch` then reads."""

    address: HubAddress
    selection: Selection
    """The files to fetch. Only their sizes are requested if the listing has no sizes."""
    limits: TimeLimits
    _heads: HeadReader | None = field(default=None, init=False)
    """The headers of files at the listed commit."""

    @property
    def name(self) -> str:
        """`owner/name@revision`."""
        return self.address.name

    def list_files(self) -> tuple[RemoteFile, ...]:
        """Return all files of the commit that the revision names now. Raises the errors of `Remote.list_files`.

        A file that the listing has no size for, and that is not to be fetched, gets the size 0.
        """
        # Otherwise the library asks the hub which facts about this machine to send, and sends them.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        info = self._answer()
        if info.sha is None or not COMMIT.fullmatch(info.sha) or info.siblings is None:
            raise unavailable(ValueError("the listing has no commit or no files"), self.address)
        if self._heads is None or self._heads.commit != info.sha:
            self._heads = HeadReader(self.address, info.sha)
        sizes = {sibling.rfilename: _listed_size(sibling) for sibling in info.siblings}
        files = tuple(
            RemoteFile(sibling.rfilename, sizes[sibling.rfilename] or 0, versions.listed_version(sibling))
            for sibling in info.siblings
        )
        unknown = {path for path, size in sizes.items() if size is None}
        return self._with_sizes(files, unknown, self._heads) if unknown else files

    def _with_sizes(
        self, files: tuple[RemoteFile, ...], unknown: set[str], reader: HeadReader
    ) -> tuple[RemoteFile, ...]:
        """Request the sizes of the files to be fetched among those of unknown size."""
        snapshot = Snapshot(copy_name(self.name, self.selection), files, self.selection)
        wanted = [file for file in choice.choose(snapshot).files if file.path in unknown]
        read = reader.with_sizes(wanted, self.limits.listing or _SILENCE_SECONDS)
        return tuple(read.get(file.path, file) for file in files)

    def _answer(self) -> ModelInfo:
        """Return the hub's response within the time limit of the listing.

        The request runs in a thread, because resolving an unknown host name may block longer than any timeout.
        """
        answer: Future[ModelInfo] = Future()
        seconds = self.limits.listing or _ANSWER_SECONDS

        def ask() -> None:
            try:
                answer.set_result(self._ask(seconds))
            except Exception as error:
                # Settings of HTTP raise any error, such as FileNotFoundError for SSL_CERT_FILE.
                known = isinstance(error, ModelNotAvailable)
                answer.set_exception(error if known else unavailable(error, self.address))

        threading.Thread(target=ask, name="hub listing", daemon=True).start()
        try:
            return answer.result(timeout=seconds)
        except TimeoutError:
            raise unavailable(httpx2.TimeoutException("no response"), self.address) from None

    def _ask(self, seconds: float) -> ModelInfo:
        """Request the listing, with retries. Raises: ModelNotAvailable."""
        api = HfApi(endpoint=self.address.endpoint, library_name=LIBRARY)
        until = time.monotonic() + seconds
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
                wait = _wait_after(failure, waits)
                if not again or wait is None or until - time.monotonic() < wait + 1:
                    raise failure from error
                waits.pop(0)
                time.sleep(wait)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise unavailable(error, self.address) from error  # not the response of a hub

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        resumed = size_of(target) > 0
        self._download(file, target, report)
        try:
            return self.verify(file, target)
        except DamagedContent:
            target.unlink()
            if not resumed:
                raise
        # The damage may be in the bytes of an earlier attempt: fetch the whole file once more.
        report(-file.size)
        return self.fetch(file, target, report)

    def _download(self, file: RemoteFile, target: Path, report: Report) -> None:
        address, commit = self.address, self._heads.commit if self._heads else None
        url = hf_hub_url(address.repo_id, file.path, revision=commit, endpoint=address.endpoint)
        silence = self.limits.silence or _SILENCE_SECONDS
        Download(address, url, file, target, report, silence).run()

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        """Compare the sha256 of LFS files, and the git blob id of other files."""
        return versions.verify(self.name, file, path)


def _listed_size(sibling: RepoSibling) -> int | None:
    size = sibling.lfs.size if sibling.lfs else sibling.size
    return size if isinstance(size, int) else None


def _wait_after(failure: ModelNotAvailable, waits: list[float]) -> float | None:
    """Return the seconds before the next attempt at the listing; None if there is none."""
    seconds = failure.seconds if isinstance(failure, Throttled) else 0.0
    return max(seconds, waits[0]) if waits and seconds <= SHORT_WAIT_SECONDS else None
