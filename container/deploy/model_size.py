"""The size of a model that may be in S3 or on the Hub."""

from __future__ import annotations

from container.models import files as model_files
from container.models.errors import ModelNotAvailable
from container.models.files import choice
from container.models.files.base import RemoteScheme, selection
from container.models.files.remote import Snapshot
from engines.models.gguf_index import read_index
from lmi_server.config import ModelSource


def model_bytes(source: ModelSource) -> int:
    """Return the size of a model's files in bytes, from this disk or from a listing. Raises: ModelNotAvailable."""
    folder = model_files.locate(source)
    if folder is not None:
        gguf = read_index(folder)
        weights = sum(gguf.sizes.values()) if gguf else 0
        return weights + sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    scheme = next(one for one in model_files.SCHEMES.values() if one.owns(source))
    if not isinstance(scheme, RemoteScheme):
        raise ModelNotAvailable(f"{source.model_id}: the model's files are not on this disk")
    remote = scheme.remote(source)
    return choice.choose(Snapshot(remote.name, remote.list_files(), selection(source))).size
