"""A model in S3: lists its objects and fetches each by parallel ranged reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from container.models.errors import DamagedContent, ModelNotAvailable
from container.models.files.choice import TEMPLATES, safe_repr
from container.models.files.journal import forget
from container.models.files.remote import RemoteFile, Report, Verification
from container.models.files.retry import RetryBudget
from container.models.files.s3.address import S3Address
from container.models.files.s3.errors import FAILURES, attempt, model_error
from container.models.files.s3.parts import THREADS, S3Object, fetch_parts
from container.models.files.s3.verification import ObjectCheck

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 3.4
"""Read timeout, short enough for the start of the program and two attempts within 10 s."""
_MAX_PAGES = 10
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


def connect(environ: Mapping[str, str]) -> Any:
    """Make a boto3 client. boto3 reads endpoint, credentials and profile itself, but not AWS_REGION."""
    session = boto3.session.Session(region_name=environ.get("AWS_REGION") or None)
    region = session.region_name or "us-east-1"
    client = session.client("s3", region_name=region, config=_config(None))
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if host.endswith(_AMAZON) or (client.meta.config.s3 or {}).get("addressing_style"):
        return client
    # Servers other than Amazon's rarely have a host name for each bucket.
    return session.client("s3", region_name=region, config=_config("path"))


def _config(addressing_style: str | None) -> Config:
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `RetryBudget` retries
        max_pool_connections=THREADS + 2,
        response_checksum_validation="when_required",  # whole files are verified at the end
        s3={"addressing_style": addressing_style} if addressing_style else None,
    )


def max_attempts(environ: Mapping[str, str]) -> int | None:
    """Return AWS_MAX_ATTEMPTS; None if it is not set. Raises ModelNotAvailable if it is not a number of attempts."""
    text = environ.get("AWS_MAX_ATTEMPTS")
    if not text:
        return None
    if not text.isdecimal() or not 0 < len(text) < 10 or int(text) < 1:
        raise ModelNotAvailable(
            f"AWS_MAX_ATTEMPTS: not a number of attempts (got {text[:40]!r}); allowed: 1 or more"
        )
    return int(text)


@dataclass(slots=True)
class S3Remote:
    """A model under a prefix of a bucket."""

    address: S3Address
    environ: Mapping[str, str] = field(repr=False)
    nested: bool = False
    """Whether objects in folders below the prefix belong to the model."""
    _client: Any = field(default=None, init=False, repr=False)
    """The boto3 client, once connected."""

    @property
    def name(self) -> str:
        return self.address.name

    def list_files(self) -> tuple[RemoteFile, ...]:
        max_attempts(self.environ)  # an invalid value is an error before anything is requested
        try:
            self._client = connect(self.environ)
        except (*FAILURES, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise model_error(error, self.name) from error
        files: list[RemoteFile] = []
        folders: list[str] = []
        for page in self._pages():
            files += self._files(page)
            folders += [self._relative_path(entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
        if TEMPLATES in folders:
            files += [file for page in self._pages(TEMPLATES) for file in self._files(page)]
        for folder in folders:
            if folder.startswith(("/", "../", "./")):
                raise ModelNotAvailable(
                    f"{self.name}: file name not allowed (got {safe_repr(folder)}): it leads out of the model's folder"
                )
        if not files:
            raise ModelNotAvailable(f"{self.name}: no object {self._location_hint(folders)}")
        return tuple(files)

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        source, head = self._object(file)
        check = ObjectCheck(source, head, target)
        fetch_parts(source, target, report, check.running)
        try:
            return check.verify()
        except DamagedContent as error:
            forget(target)
            raise DamagedContent(f"{error}; try again, or upload the file again") from error

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        source, head = self._object(file)
        return ObjectCheck(source, head, path).verify()

    def object_of(self, file: RemoteFile) -> S3Object:
        """Return the object of a listed file."""
        key = f"{self.address.prefix}{file.path}"
        return S3Object(self._client, self.address.bucket, key, file, max_attempts(self.environ))

    def _object(self, file: RemoteFile) -> tuple[S3Object, Mapping[str, Any]]:
        """Return the object of a listed file, and the HeadObject response. Raises ModelNotAvailable."""
        source = self.object_of(file)
        head = attempt(
            lambda: source.client.head_object(Bucket=source.bucket, Key=source.key, ChecksumMode="ENABLED"),
            source.new_budget(),
            source.where,
        )
        if head["ETag"] != file.version:
            raise ModelNotAvailable(
                f"{source.where}: the object changed while the model was read; try again later"
            )
        if head["ContentLength"] != file.size:
            raise ModelNotAvailable(
                f"{source.where}: the object has {head['ContentLength']} bytes, but the listing has {file.size}; upload"
                " it again"
            )
        return source, head

    def _files(self, page: Mapping[str, Any]) -> Iterator[RemoteFile]:
        for entry in page.get("Contents", ()):
            path = self._relative_path(entry["Key"])
            # A folder itself may be an object: consoles make folders this way.
            if path and not path.endswith("/"):
                yield RemoteFile(path, int(entry["Size"]), str(entry["ETag"]))

    def _pages(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        """Yield the pages of the listing. `s3://b/falcon` does not include `s3://b/falcon-40b/...`."""
        client, budget = self._client, RetryBudget(attempts=max_attempts(self.environ))
        prefix = f"{self.address.prefix}{folder}"
        address = {"Bucket": self.address.bucket, "Prefix": prefix}
        if not self.nested:
            address["Delimiter"] = "/"
        for _ in range(_MAX_PAGES):
            page = attempt(lambda: client.list_objects_v2(**address), budget, self.name)
            yield page
            if not page.get("IsTruncated"):
                return
            address["ContinuationToken"] = page["NextContinuationToken"]
        raise ModelNotAvailable(
            f"{self.name}: more than {_MAX_PAGES * 1000} objects, too many for one model; check option.model_id"
        )

    def _relative_path(self, key: str) -> str:
        return str(key).removeprefix(self.address.prefix)

    def _location_hint(self, folders: list[str]) -> str:
        if folders:
            names = ", ".join(safe_repr(folder) for folder in sorted(folders)[:3])
            return f"directly under this prefix; there are folders ({names}); set option.model_id to the model's folder"
        return "under this prefix; set option.model_id to the folder that holds config.json"
