"""Model folders of containers, in place of /opt/ml/model: copies of S3 prefixes, or local folders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from container.models.errors import ModelNotAvailable
from container.models.files.s3.address import SCHEME, S3Address, parse_address

_READ_ONLY_FILE = 0o444
_READ_ONLY_FOLDER = 0o555

Connect = Callable[[], Any]
"""Creates a boto3 client for S3."""
_Listing = tuple[tuple[str, str, int], ...]
"""Key, ETag and size of each object."""


class NoModelData(Exception):
    """The model of a container cannot be read. The message is for users."""


class ModelData:
    """Copies each S3 prefix below `folder`, and makes the copy read-only, as it may be on the platform.

    A prefix is copied again only if its objects have changed. Earlier copies stay for the containers that use them.

    A local folder is used in place, and its permissions stay as they are.
    """

    def __init__(self, folder: Path, connect: Connect) -> None:
        self._folder = folder
        self._connect = connect
        self._copies: dict[tuple[S3Address, _Listing], TemporaryDirectory[str]] = {}
        self._lock = threading.Lock()

    def folder_of(self, container: Mapping[str, Any]) -> Path:
        """Return a container's model folder, an empty one if it has no model data. Raises NoModelData."""
        uri: str = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        self._folder.mkdir(parents=True, exist_ok=True)
        if uri.startswith(SCHEME):
            return self._copy(uri)
        folder = Path(uri.removeprefix("file://")).absolute() if uri else self._folder / "empty"
        if not uri:
            folder.mkdir(exist_ok=True)
        if not folder.is_dir():
            raise NoModelData(f"ModelDataSource.S3DataSource.S3Uri: there is no folder {folder}")
        return folder

    def close(self) -> None:
        """Remove the copies."""
        for copy in self._copies.values():
            copy.cleanup()
        self._copies.clear()

    def _copy(self, uri: str) -> Path:
        with self._lock:
            try:
                address = parse_address(uri)
                client = self._connect()
                listing = _list(client, address)
                if (address, listing) not in self._copies:
                    self._copies[address, listing] = self._download(client, address, listing)
            except (BotoCoreError, ClientError, OSError, ModelNotAvailable) as error:
                raise NoModelData(f"{uri}: {error}") from error
            return Path(self._copies[address, listing].name)

    def _download(self, client: Any, address: S3Address, listing: _Listing) -> TemporaryDirectory[str]:
        copy = TemporaryDirectory(prefix="model-", dir=self._folder)
        try:
            target = Path(copy.name)
            for key, _, _ in listing:
                name = key.removeprefix(address.prefix)
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise ModelNotAvailable(f"the key {key!r} is refused: not a file name")
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(address.bucket, key, str(path))
            for path in [target, *target.rglob("*")]:
                path.chmod(_READ_ONLY_FOLDER if path.is_dir() else _READ_ONLY_FILE)
        except BaseException:
            copy.cleanup()
            raise
        return copy


def _list(client: Any, address: S3Address) -> _Listing:
    """List the files below a prefix. Raises ModelNotAvailable if there are none."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.prefix)
    entries = [entry for page in pages for entry in page.get("Contents", ())]
    files = tuple((one["Key"], one["ETag"], one["Size"]) for one in entries if not one["Key"].endswith("/"))
    if not files:
        raise ModelNotAvailable("no object below this prefix")
    return files
