"""Models in S3, fetched into the cache. boto3 is imported only when something is fetched."""

from __future__ import annotations

from pathlib import Path

from container.models.files import fetch
from container.models.files.base import ModelNotAvailable
from container.models.files.no_weights import as_wanted, copy_name
from container.models.files.remote import Remote
from container.models.files.s3.address import SCHEME, parse
from container.progress import ProgressView
from container.run.launch import environment
from lmi_server.config import ModelSource


class S3Models:
    """Models in S3, or in any server that speaks its API (`AWS_ENDPOINT_URL`)."""

    def owns(self, source: ModelSource) -> bool:
        return source.model_id is not None and source.model_id.startswith(SCHEME)

    def refusal(self, source: ModelSource) -> str | None:
        try:
            parse(source.model_id or "")
        except ModelNotAvailable as error:
            return str(error)
        return None

    def name(self, source: ModelSource) -> str:
        return copy_name(parse(source.model_id or "").name, source)

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        return None if self.refusal(source) else fetch.locate(self.name(source), cache)

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        return fetch.obtain(self._remote(source), cache, view)

    def verify(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        return fetch.verify(self._remote(source), cache, view)

    def _remote(self, source: ModelSource) -> Remote:
        address = parse(source.model_id or "")
        from container.models.files.s3.remote import S3Remote  # half a second, which nobody else should pay

        return as_wanted(S3Remote(address, environment(), source.trust_remote_code), source)
