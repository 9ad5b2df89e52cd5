"""Where a model's files are: one class per kind of location, each registered in `SCHEMES`. Imports no torch.

Every scheme answers two questions: `locate` (is the model on this disk already? no work, no connection) and
`obtain` (make it so).
"""

from __future__ import annotations

from pathlib import Path

from container import prepare
from container.launch import cache_dir, environment
from container.model_files.base import ModelNotAvailable, Scheme
from container.model_files.bundled import BundledModel
from container.model_files.folder import LocalFolder
from container.progress import ProgressView
from lmi_server.config import ModelSource

__all__ = ["SCHEMES", "ModelNotAvailable", "Scheme", "locate", "obtain", "refusal"]

SCHEMES: dict[str, Scheme] = {"bundled": BundledModel(), "folder": LocalFolder()}
"""In the order in which they are asked."""


def refusal(source: ModelSource) -> str | None:
    """Why no scheme takes this source: one sentence; None when one does."""
    if any(scheme.owns(source) for scheme in SCHEMES.values()):
        return None
    model_id = source.model_id or ""
    if model_id.startswith("s3://"):
        return (
            f"option.model_id={model_id}: models in S3 cannot be fetched by this version; "
            "copy the model into a folder and name the folder"
        )
    if "://" in model_id:
        return f"option.model_id={model_id}: '{model_id.split('://')[0]}://' is not a known kind of location"
    return (
        f"option.model_id={model_id}: no such folder, and models of the Hugging Face hub cannot be fetched by this "
        f"version; name a local folder, or the bundled model {prepare.BUNDLED_MODEL}"
    )


def _scheme(source: ModelSource) -> Scheme:
    for scheme in SCHEMES.values():
        if scheme.owns(source):
            return scheme
    raise ModelNotAvailable(refusal(source))


def locate(source: ModelSource, cache: Path | None = None) -> Path | None:
    """The model's folder if it is ready on this disk, else None. No work, no connection, no torch."""
    try:
        scheme = _scheme(source)
    except ModelNotAvailable:
        return None
    return scheme.locate(source, cache or cache_dir(environment()))


def obtain(source: ModelSource, view: ProgressView, cache: Path | None = None) -> Path:
    """The model's folder, prepared if need be. Raises `ModelNotAvailable`."""
    return _scheme(source).obtain(source, cache or cache_dir(environment()), view)
