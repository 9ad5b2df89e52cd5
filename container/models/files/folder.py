"""The scheme of folders on this machine. They are only read, because `/opt/ml/model` may be mounted read-only."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from container.models.errors import ModelNotAvailable
from container.models.files import choice
from container.models.files.base import Scheme
from container.models.files.remote import RemoteFile, Snapshot
from container.models.files.s3.manifest import MANIFEST
from container.progress import ProgressView
from engines.git_lfs import pointer_problem
from engines.models import gguf_index
from engines.models.weight_files import read_header
from lmi_server.config import ModelSource


def weights_problem(folder: Path) -> str | None:
    """Return in one sentence why the weights in a model's folder cannot be loaded; None if they are complete.

    Reads the index and the headers of `checked_weight_files`. Of a GGUF file it only checks the size.
    """
    if (index := gguf_index.read_index(folder)) is not None:
        return index.problem or None
    try:
        files = checked_weight_files(folder)
    except ModelNotAvailable as error:
        return str(error)
    for file in files:
        try:
            read_header(file)
        except SafetensorError as error:
            return pointer_problem(file) or f"{file} is not a complete safetensors file: {error}"
    return None


def checked_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model in a folder, without other copies of its weights.

    The rules are the same as for fetched models: safetensors, all files of the index. Raises ModelNotAvailable.
    """
    listed = [folder / choice.CONFIG, folder / choice.INDEX]
    listed += [path for path in folder.iterdir() if path.name.endswith(choice.WEIGHTS_FORMATS)]
    files = tuple(RemoteFile(path.name, path.stat().st_size, "") for path in listed if path.is_file())
    snapshot = choice.choose(Snapshot(str(folder), files))
    if any(file.path == choice.INDEX for file in snapshot.files):
        snapshot = choice.keep_shards(snapshot, folder / choice.INDEX)
    return [folder / file.path for file in snapshot.files if choice.is_safetensors(file.path)]


class LocalFolder(Scheme):
    """A folder on this machine: `option.model_id`, which defaults to the folder of serving.properties."""

    def owns(self, source: ModelSource) -> bool:
        if source.model_id is None or source.model_id.startswith(("/", "~", "./", "../")):
            return True
        return "://" not in source.model_id and source.local_path.exists()

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        folder = source.local_path
        written_here = any((folder / name).exists() for name in (MANIFEST, gguf_index.NAME))
        return folder if (folder / choice.CONFIG).is_file() and not written_here else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        folder = self.locate(source, cache)
        if folder is None:
            raise ModelNotAvailable(folder_problem(source))
        return folder


def folder_problem(source: ModelSource) -> str:
    """Return in one sentence why `LocalFolder` does not find the model of a source."""
    folder = source.local_path
    if not folder.exists():
        return f"the model folder {folder} does not exist (option.model_id)"
    if not folder.is_dir():
        return f"{folder} is a file; set option.model_id to the folder of a model"
    if (folder / MANIFEST).exists():
        return (
            f"{folder} has only the headers of the weights (option.load_format=stream); set option.model_id to the "
            "S3 URI"
        )
    if (folder / gguf_index.NAME).exists():
        return (
            f"{folder} has a {gguf_index.NAME}, which only this server may write; remove it, or set "
            "option.model_id to the GGUF file"
        )
    hint = "" if source.model_id else "; set option.model_id, or copy the model's files there"
    return f"the folder {folder} is not a model: it has no config.json{hint}"
