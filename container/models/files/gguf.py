"""The scheme of GGUF files on this machine."""

from __future__ import annotations

from pathlib import Path

from container.models.errors import ModelNotAvailable
from container.models.files.base import Scheme
from container.models.files.gguf_description import locate_description, make_description
from container.models.gguf_names import SUFFIX, is_first, parts_of
from container.progress import ProgressView
from lmi_server.config import ModelSource


def _files(source: ModelSource) -> list[Path]:
    """Return the first file of the GGUF model, or of each GGUF model in the folder, that `option.model_id` names."""
    if "://" in (source.model_id or ""):
        return []
    path = source.local_path
    if path.is_file():
        return [path.with_name(parts_of(path.name)[0])] if path.suffix == SUFFIX else []
    if any(path.glob("*.safetensors")):
        return []
    return [file for file in sorted(path.glob(f"*{SUFFIX}")) if is_first(file.name)]


class GgufModels(Scheme):
    """A GGUF model: a GGUF file, or a folder with the files of one GGUF model and no safetensors."""

    def owns(self, source: ModelSource) -> bool:
        return bool(_files(source))

    def refusal(self, source: ModelSource) -> str | None:
        files = _files(source)
        if len(files) < 2:
            return None
        names = ", ".join(file.name for file in files)
        return f"{files[0].parent} has several GGUF files; set option.model_id to the path of one of them: {names}"

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        return None if self.refusal(source) else locate_description(_files(source)[0], cache)

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        if sentence := self.refusal(source):
            raise ModelNotAvailable(sentence)
        return make_description(_files(source)[0], cache, view)
