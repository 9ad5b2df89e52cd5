"""The interface of a kind of model location. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path

from container.models.errors import ModelNotAvailable
from container.models.files import fetch
from container.models.files.copies import copy_name, folders, last_published
from container.models.files.gguf_description import first_files, locate_description, make_description
from container.models.files.remote import Remote, Selection
from container.models.gguf_names import split_address
from container.progress import ProgressView
from lmi_server.config import ModelSource


class Scheme(ABC):
    """A kind of model location."""

    @abstractmethod
    def owns(self, source: ModelSource) -> bool:
        """Return whether `source` is of this kind. The first scheme that owns a source is used."""

    def refusal(self, source: ModelSource) -> str | None:
        """Return why a source can never be obtained, judged by its address; else None."""
        return None

    @abstractmethod
    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        """Return the model's folder if it is complete on this disk; else None. Opens no connection."""

    @abstractmethod
    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """Return the model's folder, prepared if needed. Raises ModelNotAvailable."""


class RemoteScheme(Scheme):
    """A kind of location that models are fetched from."""

    @abstractmethod
    def name(self, source: ModelSource) -> str:
        """Return the `Remote.name` of a source without a refusal."""

    @abstractmethod
    def remote(self, source: ModelSource) -> Remote:
        """Return the remote of a source without a refusal. Raises ModelNotAvailable."""

    def is_pinned(self, source: ModelSource) -> bool:
        """Return whether the source never changes. The remote is then not contacted for a complete copy."""
        return False

    def copy_name(self, source: ModelSource) -> str:
        """Return the name of the copies of a source without a refusal in the cache."""
        return copy_name(self.name(source), selection(source))

    def other_cache(self, source: ModelSource) -> fetch.OtherCache | None:
        """Return a cache of other programs that may have the model. Raises ModelNotAvailable."""
        return None

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        return self._locate_copy(source, cache)

    def _locate_copy(self, source: ModelSource, cache: Path) -> Path | None:
        """Return the folder that serves a copy in our own cache; None if it is not complete."""
        copy = None if self.refusal(source) else last_published(self.copy_name(source), cache)
        return None if copy is None else folder_or_description(_served(copy, source, cache), cache)

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        folder = self._locate_copy(source, cache)
        if folder is not None and self.is_pinned(source):
            return folder
        remote = self._remote(source)
        model = fetch.obtain(remote, cache, view, selection(source), partial(self.other_cache, source))
        return _serving_folder(model, source, cache, view)

    def verify(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        """Like `obtain`, but compare the files of an existing copy with the remote. Raises ModelNotAvailable."""
        copy = fetch.verify(self._remote(source), cache, view, selection(source))
        return _serving_folder(copy, source, cache, view)

    def _remote(self, source: ModelSource) -> Remote:
        if sentence := self.refusal(source):
            raise ModelNotAvailable(sentence)
        return self.remote(source)


def _served(model: Path, source: ModelSource, cache: Path) -> Path:
    """Return the first GGUF file of a copy in our own cache, unless a handler reads the files; else the given path.

    A copy has no other GGUF files than the model's.
    """
    is_copy = model.parent == folders(cache)[0]
    files = first_files(model) if is_copy and not source.fetch_all_files else []
    return files[0] if files else model


def folder_or_description(model: Path, cache: Path) -> Path | None:
    """Return the folder of a model; of a GGUF file the folder that describes it, None if it does not exist."""
    return locate_description(model, cache) if model.is_file() else model


def _serving_folder(model: Path, source: ModelSource, cache: Path, view: ProgressView) -> Path:
    """Return the folder to serve: the model's, or the description of its GGUF files unless a handler reads them.

    model: a folder, or a GGUF file. Raises ModelNotAvailable.
    """
    model = _served(model, source, cache)
    return make_description(model, cache, view) if model.is_file() else model


def selection(source: ModelSource) -> Selection:
    """Return which of the source's files are fetched."""
    load_format, (_, gguf) = source.load_format, split_address(source.model_id or "")
    everything = source.fetch_all_files and not gguf
    return Selection(load_format != "dummy", load_format == "stream", gguf, everything)
