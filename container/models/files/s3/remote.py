"""A model in S3 as a `Remote`: the listing, and one object after the other in parallel ranged reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from container.models.files.base import DamagedContent, ModelNotAvailable
from container.models.files.choice import shown
from container.models.files.journal import forget
from container.models.files.patience import Patience
from container.models.files.remote import RemoteFile, Report, Snapshot, Verification
from container.models.files.s3.address import S3Address
from container.models.files.s3.errors import FAILURES, attempt, refused
from container.models.files.s3.parts import THREADS, S3Object, fetch_parts
from container.models.files.s3.verification import ObjectCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 3.4
"""Twice and a start of the program in between fit into 10 s."""
_MAX_PAGES = 10
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


def connect(environ: Mapping[str, str]) -> Any:
    """A boto3 client. Endpoint, credentials, profile and the rest boto3 reads itself; AWS_REGION it does not."""
    session = boto3.session.Session(region_name=environ.get("AWS_REGION") or None)
    region = session.region_name or "us-east-1"
    client = session.client("s3", region_name=region, config=_config(None))
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if host.endswith(_AMAZON) or (client.meta.config.s3 or {}).get("addressing_style"):
        return client
    # Another server than Amazon's: rarely has it a name for each bucket.
    return session.client("s3", region_name=region, config=_config("path"))


def _config(addressing_style: str | None) -> Config:
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": 1},  # asked again by our own `Patience`, which has a limit in time
        max_pool_connections=THREADS + 2,
        response_checksum_validation="when_required",  # whole files are verified at the end, whatever they came in
        s3={"addressing_style": addressing_style} if addressing_style else None,
    )


@dataclass(frozen=True, slots=True)
class S3Remote:
    """One model under one prefix."""

    address: S3Address
    environ: Mapping[str, str] = field(repr=False)
    with_code: bool = False
    _clients: list[Any] = field(default_factory=list, repr=False)
    """The one client, once there is one."""

    @property
    def name(self) -> str:
        return self.address.name

    def snapshot(self) -> Snapshot:
        try:
            self._clients[:] = [connect(self.environ)]
        except (*FAILURES, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise refused(error, self.name) from error
        files: list[RemoteFile] = []
        folders: list[str] = []
        for page in self._pages():
            for entry in page.get("Contents", ()):
                path = self._below(entry["Key"])
                if path:  # the prefix itself may be an object: how consoles make folders
                    files.append(RemoteFile(path, int(entry["Size"]), str(entry["ETag"])))
            folders += [self._below(entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
        for folder in folders:
            if folder.startswith(("/", "../", "./")):
                raise ModelNotAvailable(
                    f"{self.name}: the key {shown(folder)} below it is refused: it is no file name"
                )
        if not files:
            raise ModelNotAvailable(f"{self.name}: there is no object {self._elsewhere(folders)}")
        return Snapshot(self.name, tuple(files), self.with_code)

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        source, head = self._object(file)
        check = ObjectCheck(source, head, target)
        fetch_parts(source, target, report, Patience(), check.arrived)
        try:
            return check.verify()
        except DamagedContent as error:
            forget(target)
            raise DamagedContent(f"{error}; start again, or upload it again") from error

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        source, head = self._object(file)
        return ObjectCheck(source, head, path).verify()

    def _object(self, file: RemoteFile) -> tuple[S3Object, Mapping[str, Any]]:
        """The object of a listed file, and what HeadObject says of it. Raises `ModelNotAvailable`."""
        source = S3Object(self._clients[0], self.address.bucket, f"{self.address.prefix}{file.path}", file)
        head = attempt(
            lambda: source.client.head_object(Bucket=source.bucket, Key=source.key, ChecksumMode="ENABLED"),
            Patience(),
            source.where,
        )
        if head["ETag"] != file.version:
            raise ModelNotAvailable(
                f"{source.where}: the object changed while the model was read; start again later"
            )
        if head["ContentLength"] != file.size:
            raise ModelNotAvailable(
                f"{source.where}: the object has {head['ContentLength']} bytes, {file.size} were listed; upload it "
                "again"
            )
        return source, head

    def _pages(self) -> Iterator[Mapping[str, Any]]:
        """The listing, one folder deep: `s3://b/falcon` is not `s3://b/falcon-40b/...`."""
        client, patience = self._clients[0], Patience()
        asked: dict[str, Any] = {
            "Bucket": self.address.bucket,
            "Prefix": self.address.prefix,
            "Delimiter": "/",
        }
        for _ in range(_MAX_PAGES):
            page = attempt(lambda: client.list_objects_v2(**asked), patience, self.name)
            yield page
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]
        raise ModelNotAvailable(
            f"{self.name}: more than {_MAX_PAGES * 1000} objects are no model; look at option.model_id"
        )

    def _below(self, key: str) -> str:
        return str(key).removeprefix(self.address.prefix)

    def _elsewhere(self, folders: list[str]) -> str:
        if folders:
            names = ", ".join(shown(folder) for folder in sorted(folders)[:3])
            return f"directly under it, but there are folders ({names}); option.model_id names the model's own folder"
        return "under it; look at option.model_id, which names the folder that holds config.json"
