"""Which models there are: whether the platform names them, and the names and addresses that it may give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from container.models.several import MODEL_NAME
from container.multi_model.errors import BadModel
from lmi_server.values.show import as_json

MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"


def is_multi_model(environ: Mapping[str, str]) -> bool:
    """Whether the platform loads and unloads the models."""
    return environ.get(MULTI_MODEL, "").strip().lower() == "true"


def check_name(name: str) -> None:
    """Raises BadModel."""
    if not MODEL_NAME.fullmatch(name):
        raise BadModel(
            f"model_name: given {as_json(name)}; accepted: 1 to 128 letters, digits, '.', '_' and '-', "
            "the first a letter or a digit"
        )


def folder_of_url(url: str, root: Path) -> Path:
    """The folder that a path or a `file://` address names; it must be below `root`. Raises BadModel."""
    path = Path(unquote(urlsplit(url).path) if url.startswith("file:") else url)
    given = f"url: given {as_json(url)}"
    if "\0" in url or not path.is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise BadModel(f"{given}; accepted: a folder below {root}")
    if not path.is_dir():
        raise BadModel(f"{given}: there is no such folder; archives are not unpacked here")
    return path.resolve()
