"""Model folders of containers, in place of /opt/ml/model: copies of S3 prefixes, archives, or local folders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from container.endpoint.archive import extract
from container.models.errors import ModelNotAvailable
from container.models.files.s3.address import SCHEME, S3Address, parse_address

_READ_ONLY_FILE = 0o444
_READ_ONLY_FOLDER = 0o555

Connect = Callable[[], Any]
"""Creates a boto3 client for S3."""
_Listing = tuple[tuple[str, str, int], ...]
"""Key, ETag and size of each object."""
_Fill = Callable[[Path], None]
"""Writes a model's files to an empty folder."""


class NoModelData(Exception):
    """The model of a container cannot be read. The message is for users."""


class ModelData:
    """Copies each S3 prefix, or extracts each archive, below `folder`. Copies are read-only, as they may be on the
    platform.

    A prefix is copied again only if its objects have changed. Earlier copies stay for the containers that use them.
    The same holds for archives in S3 and on this machine.

    A local folder is used in place, and its permissions stay as they are.
    """

    def __init__(self, folder: Path, connect: Connect) -> None:
        self._folder = folder
        self._connect = connect
        self._copies: dict[tuple[str, _Listing], TemporaryDirectory[str]] = {}
        self._lock = threading.Lock()

    def folder_of(self, container: Mapping[str, Any]) -> Path:
        """Return a container's model folder, an empty one if it has no model data. Raises NoModelData."""
        source = container.get("ModelDataSource", {}).get("S3DataSource", {})
        uri: str = container.get("ModelDataUrl") or source.get("S3Uri", "")
        self._folder.mkdir(parents=True, exist_ok=True)
        if "ModelDataUrl" in container or source.get("CompressionType") == "Gzip":
            return self._copy(uri, self._archive)
        if uri.startswith(SCHEME):
            return self._copy(uri, self._prefix)
        folder = _local(uri) if uri else self._folder / "empty"
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

    def _copy(self, uri: str, read: Callable[[str], tuple[_Listing, _Fill]]) -> Path:
        """Return a copy of a model. read: returns what identifies its present files, and how to copy them."""
        with self._lock:
            try:
                listing, fill = read(uri)
                if (uri, listing) not in self._copies:
                    self._copies[uri, listing] = self._filled(fill)
            except Exception as error:  # the errors of boto3 and s3transfer have no common base class
                raise NoModelData(f"{uri}: {error}") from error
            return Path(self._copies[uri, listing].name)

    def _filled(self, fill: _Fill) -> TemporaryDirectory[str]:
        copy = TemporaryDirectory(prefix="model-", dir=self._folder)
        try:
            target = Path(copy.name)
            fill(target)
            for path in [target, *target.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(_READ_ONLY_FOLDER if path.is_dir() else _READ_ONLY_FILE)
        except BaseException:
            copy.cleanup()
            raise
        return copy

    def _prefix(self, uri: str) -> tuple[_Listing, _Fill]:
        """Read an S3 prefix."""
        address = parse_address(uri)
        client = self._connect()
        listing = _list(client, address)
        return listing, lambda target: _download(client, address, listing, target)

    def _archive(self, uri: str) -> tuple[_Listing, _Fill]:
        """Read a gzip-compressed tar archive in S3 or on this machine."""
        if not uri.startswith(SCHEME):
            path = _local(uri)
            found = path.stat()
            return ((str(path), str(found.st_mtime_ns), found.st_size),), lambda target: _extract_local(
                path, target
            )
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        client = self._connect()
        head = client.head_object(Bucket=bucket, Key=key)

        def fill(target: Path) -> None:
            with TemporaryFile(dir=self._folder) as file:
                client.download_fileobj(bucket, key, file)
                file.seek(0)
                extract(file, target)

        return ((key, head["ETag"], head["ContentLength"]),), fill


def _local(uri: str) -> Path:
    return Path(uri.removeprefix("file://")).absolute()


def _extract_local(path: Path, target: Path) -> None:
    with path.open("rb") as file:
        extract(file, target)


def _download(client: Any, address: S3Address, listing: _Listing, target: Path) -> None:
    """Download the objects of a prefix. Raises ModelNotAvailable."""
    for key, _, _ in listing:
        name = key.removeprefix(address.prefix)
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelNotAvailable(
                f"file name not allowed (got {key!r}): it leads out of the model's folder"
            )
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(address.bucket, key, str(path))


def _list(client: Any, address: S3Address) -> _Listing:
    """List the files below a prefix. Raises ModelNotAvailable if there are none."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.prefix)
    entries = [entry for page in pages for entry in page.get("Contents", ())]
    files = tuple((one["Key"], one["ETag"], one["Size"]) for one in entries if not one["Key"].endswith("/"))
    if not files:
        raise ModelNotAvailable("no object below this prefix")
    return files
