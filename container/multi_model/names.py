"""Multi-model mode, and checks of the model names and URLs that the platform sends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from container.multi_model.errors import BadModel
from lmi_server.values.model_name import MODEL_NAME, MODEL_NAME_RULE
from lmi_server.values.show import as_json

MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"


def is_multi_model(environ: Mapping[str, str]) -> bool:
    """Return whether the platform loads and unloads the models."""
    return environ.get(MULTI_MODEL, "").strip().lower() == "true"


def check_name(name: str) -> None:
    """Raise BadModel if the name is not valid."""
    if not MODEL_NAME.fullmatch(name):
        raise BadModel(f"model_name: given {as_json(name)}; accepted: {MODEL_NAME_RULE}")


def folder_of_url(url: str, root: Path) -> Path:
    """Return the folder of a path or `file://` URL. Raises BadModel unless it exists below `root`."""
    given = f"url: given {as_json(url)}"
    bad = BadModel(f"{given}; accepted: a folder below {root}")
    try:
        path = Path(unquote(urlsplit(url).path) if url.startswith("file:") else url)
        if not path.is_absolute() or not path.resolve().is_relative_to(root.resolve()):
            raise bad
        if path.is_dir():
            return path.resolve()
    except (ValueError, OSError, RuntimeError) as error:  # not a path, or links in a circle
        raise bad from error
    raise BadModel(f"{given}: folder not found; archives are not unpacked")
