"""Models in huggingface_hub's own cache, which other programs fill and this one only reads. Imports huggingface_hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import IncompleteSnapshotError

from container.models.errors import ModelNotAvailable, shorten
from container.models.files import choice
from container.models.files.folder import weights_problem
from container.models.files.hub.settings import COMMIT
from container.models.files.remote import RemoteFile, Selection, Snapshot
from container.models.files.s3.manifest import MANIFEST
from container.models.gguf_names import is_first
from engines.models import gguf_index


def cache_folder() -> Path:
    """Return the folder of the cache (HF_HUB_CACHE, HF_HOME)."""
    return Path(constants.HF_HUB_CACHE)


def find_model(repo_id: str, revision: str, selection: Selection) -> Path:
    """Return the folder of a model in the cache, or the model's first GGUF file. Opens no connection.

    Raises: ModelNotAvailable: the cache has no complete copy. The message is empty if it has none at all.
    """
    folder = _snapshot(repo_id, revision, selection)
    try:
        return _complete(folder, selection)
    except OSError as error:
        raise ModelNotAvailable(f"{folder} cannot be read ({error.strerror or error})") from error


def _snapshot(repo_id: str, revision: str, selection: Selection) -> Path:
    """Return the folder of the revision, which may lack files that serving does not need."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        folder = Path(snapshot_download(repo_id, revision=revision, local_files_only=True))
    except IncompleteSnapshotError as error:
        # Programs that download only what they need leave such folders.
        folder = Path(error.snapshot_path)
        if selection.everything:
            raise ModelNotAvailable(f"{folder} is incomplete") from error
    except (OSError, ValueError) as error:
        raise ModelNotAvailable("") from error
    if not COMMIT.fullmatch(folder.name):
        raise ModelNotAvailable(f"the revision {shorten(folder.name)!r} in it is not a commit")
    return folder


def _complete(folder: Path, selection: Selection) -> Path:
    """Check a folder by the rules for local folders. Raises: ModelNotAvailable, OSError."""
    files = tuple(
        RemoteFile(str(path.relative_to(folder)), path.stat().st_size, "")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    chosen = choice.choose(Snapshot(str(folder), files, selection))
    if selection.everything:
        return folder
    if gguf := [file.path for file in chosen.files if is_first(file.path)]:
        return choice.safe_join(folder, gguf[0])
    for name in (MANIFEST, gguf_index.NAME):
        if (folder / name).exists():
            raise ModelNotAvailable(f"{folder} has a {name}, which only this server may write")
    if selection.with_weights and (problem := weights_problem(folder)):
        raise ModelNotAvailable(problem)
    return folder
