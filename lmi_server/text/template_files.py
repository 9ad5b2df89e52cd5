"""Read the chat templates of a model folder from the same files as transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmi_server.text.json_file import read_json

DEFAULT = "default"


def read_templates(folder: Path) -> dict[str, str]:
    """Return the sources of the chat templates by name; empty if there are none.

    Template files (`chat_template.jinja`, `additional_chat_templates/NAME.jinja`) take precedence over
    tokenizer_config.json, which takes precedence over the chat_template.json of multimodal models.

    Raises `ValueError`, which names the file, if a file is not valid.
    """
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (default_file := folder / "chat_template.jinja").is_file():
        files = {DEFAULT: default_file, **files}
    if files:
        return {name: _read_text(path) for name, path in files.items()}
    for name in ("tokenizer_config.json", "chat_template.json"):
        if found := _by_name(read_json(folder / name).get("chat_template")):
            return found
    return {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ValueError(f"{path}: not valid UTF-8: {error}") from error


def _by_name(value: Any) -> dict[str, str]:
    """Return templates by name, from one template, an object, or a list of objects with `name` and `template`."""
    if isinstance(value, str):
        return {DEFAULT: value}
    named = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    pairs = [(one.get("name"), one.get("template")) for one in named]
    if isinstance(value, dict):
        pairs = list(value.items())
    return {name: source for name, source in pairs if isinstance(name, str) and isinstance(source, str)}
