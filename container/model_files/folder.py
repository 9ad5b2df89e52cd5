"""A folder on this machine. Only read: it may be `/opt/ml/model`, mounted read-only."""

from __future__ import annotations

from pathlib import Path

from container.model_files.base import ModelNotAvailable
from container.progress import ProgressView
from lmi_server.config import ModelSource


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
