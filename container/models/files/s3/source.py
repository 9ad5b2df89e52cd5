"""The scheme of models in S3, fetched into the cache. boto3 is imported only when something is fetched."""

from __future__ import annotations

from container.models.errors import ModelNotAvailable
from container.models.files.base import RemoteScheme
from container.models.files.remote import Remote
from container.models.files.s3.address import SCHEME, S3Address, parse_address
from container.models.gguf_names import split_address
from container.run.launch import environment
from lmi_server.config import ModelSource

BYTE_RANGES = "container.models.files.s3.ranges:S3Ranges"
"""Import path of the reader of streamed weights, for `ModelSettings.byte_ranges`."""


class S3Models(RemoteScheme):
    """Models in S3, or on any server with its API (`AWS_ENDPOINT_URL`)."""

    def owns(self, source: ModelSource) -> bool:
        return source.model_id is not None and source.model_id.startswith(SCHEME)

    def refusal(self, source: ModelSource) -> str | None:
        try:
            _address(source)
        except ModelNotAvailable as error:
            return str(error)
        return None

    def name(self, source: ModelSource) -> str:
        return _address(source).name

    def remote(self, source: ModelSource) -> Remote:
        from container.models.files.s3.remote import S3Remote  # takes half a second
        from container.models.files.s3.streamed import StreamedS3

        remote = S3Remote(_address(source), environment(), nested=source.fetch_all_files)
        return StreamedS3(remote) if source.load_format == "stream" else remote


def _address(source: ModelSource) -> S3Address:
    """Return the model's address in S3. Raises ModelNotAvailable."""
    return parse_address(split_address(source.model_id or "")[0])
