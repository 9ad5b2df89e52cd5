"""Sizes of files by HEAD requests, for hubs whose listing has none, as of some mirrors. Imports huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import httpx2
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import HfFileMetadata

from container.models.files.hub import versions
from container.models.files.hub.errors import HubAddress, unavailable
from container.models.files.hub.settings import LIBRARY
from container.models.files.remote import RemoteFile
from container.models.files.retry import RetryBudget, seconds_for_attempts

_THREADS = 8


@dataclass(slots=True)
class HeadReader:
    """Reads the headers of files of one commit, and keeps them for the next attempt at a listing."""

    address: HubAddress
    commit: str
    _files: dict[str, RemoteFile] = field(default_factory=dict)

    def with_sizes(self, files: Iterable[RemoteFile], timeout: float) -> Mapping[str, RemoteFile]:
        """Return the files by path with the sizes in their headers, which are read in parallel and with retries.

        timeout: of a request, in seconds. Raises ModelNotAvailable.
        """
        missing = [file for file in files if file.path not in self._files]
        budget = RetryBudget(seconds_for_attempts(timeout))
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="hub sizes")
        try:
            for future in as_completed([pool.submit(self._read, file, timeout, budget) for file in missing]):
                future.result()
        finally:
            budget.stop.set()
            pool.shutdown(cancel_futures=True)
        return self._files

    def _read(self, file: RemoteFile, timeout: float, budget: RetryBudget) -> None:
        metadata = budget.run(lambda: self._request(file.path, timeout))
        self._files[file.path] = self._with_head(file, metadata)

    def _request(self, path: str, timeout: float) -> HfFileMetadata:
        """Raises: ModelNotAvailable; RemoteUnreachable for temporary errors."""
        address = self.address
        url = hf_hub_url(address.repo_id, path, revision=self.commit, endpoint=address.endpoint)
        try:
            return get_hf_file_metadata(url, timeout=timeout, library_name=LIBRARY, endpoint=address.endpoint)
        except (httpx2.HTTPError, ValueError, httpx2.InvalidURL) as error:
            raise unavailable(error, address, path) from error

    def _with_head(self, file: RemoteFile, metadata: HfFileMetadata) -> RemoteFile:
        """Return the file with its size, and with its ETag if the listing has no version of it."""
        if metadata.size is None:
            wrong = ValueError(f"neither the listing nor the headers have a size for {file.path}")
            raise unavailable(wrong, self.address)
        listed = file.version.partition(":")[2]
        version = file.version if listed else versions.etag_version(metadata.etag or "")
        return RemoteFile(file.path, metadata.size, version)
