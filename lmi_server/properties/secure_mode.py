"""SageMaker's secure mode, in which the platform forbids certain files and settings of a model."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lmi_server.config import ModelSource
from lmi_server.properties.handler import BUILT_IN, REQUIREMENTS, HandlerFile
from lmi_server.properties.option import OptionValue
from lmi_server.properties.problems import Problem, Source
from lmi_server.text.json_file import read_json

_MODE = "SAGEMAKER_SECURE_MODE"
_CONTROLS = "SAGEMAKER_SECURITY_CONTROLS"
_CHANNELS = "SAGEMAKER_UNTRUSTED_CHANNELS"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_GGUF_TEMPLATE = b"tokenizer.chat_template"
"""Beginning of the keys of chat templates in a GGUF file."""
_KNOWN = (
    "DISALLOW_CUSTOM_INFERENCE_SCRIPTS",
    "DISALLOW_REQUIREMENTS_TXT",
    "DISALLOW_PICKLE_FILES",
    "DISALLOW_TRUST_REMOTE_CODE",
    "DISALLOW_CHAT_TEMPLATE",
)


def violations(
    environ: Mapping[str, str], folder: Path, values: Mapping[str, OptionValue], code: HandlerFile | None
) -> list[Problem]:
    """Return a problem for each file or setting that an active control forbids.

    Missing or unknown controls, and channels that are not folders, are problems too.

    `code`: the user's file with a handler or formatters.
    """
    if environ.get(_MODE, "").strip().lower() != "true":
        return []
    if _CONTROLS not in environ:
        reason = f"{_CONTROLS} is not set; it must list the active controls and may be empty"
        return [Problem(Source(variable=_MODE), "", "true", reason)]
    controls = _names(environ, _CONTROLS)
    unknown = [name for name in controls if name not in _KNOWN]
    found = [
        Problem(Source(variable=_CONTROLS), "", name, "unknown security control", ", ".join(_KNOWN))
        for name in unknown
    ]
    channels = [folder, *map(Path, _names(environ, _CHANNELS))]
    found += (
        Problem(Source(variable=_CHANNELS), "", str(channel), "is not a folder")
        for channel in channels[1:]
        if not channel.is_dir()
    )
    # The file, which is not trusted, may select a model elsewhere.
    model = values.get("option.model_id")
    selected = model if model is not None and not model.source.variable else None
    if selected is not None:
        place = ModelSource(str(selected.value), str(folder)).local_path
        if place.exists():
            channels.append(place)
        elif "DISALLOW_CHAT_TEMPLATE" in controls:
            reason = f"its chat template is not known, and DISALLOW_CHAT_TEMPLATE ({_CONTROLS}) forbids one"
            found.append(selected.problem(reason))
    for control in controls:
        found += (
            Problem(source, "", "", f"forbidden by the security control {control} ({_CONTROLS})")
            for source in _forbidden_sources(control, channels, values, code)
        )
    return found


def _names(environ: Mapping[str, str], variable: str) -> list[str]:
    return [name.strip() for name in environ.get(variable, "").split(",") if name.strip()]


def _forbidden_sources(
    control: str, channels: list[Path], values: Mapping[str, OptionValue], code: HandlerFile | None
) -> Iterator[Source]:
    """Yield the sources of the files and settings that a control forbids."""
    match control:
        case "DISALLOW_CUSTOM_INFERENCE_SCRIPTS":
            entry = values.get("option.entryPoint")
            if code is not None:
                yield Source(str(code.path))
            elif entry is not None and not str(entry.value).startswith(BUILT_IN):
                yield entry.source
        case "DISALLOW_REQUIREMENTS_TXT":
            yield from _files(channels, lambda path: path.name == REQUIREMENTS)
        case "DISALLOW_PICKLE_FILES":
            yield from _files(channels, lambda path: path.suffix.lower() in _PICKLES)
        case "DISALLOW_TRUST_REMOTE_CODE":
            trust = values.get("option.trust_remote_code")
            if trust is not None and trust.value is True:
                yield trust.source
        case "DISALLOW_CHAT_TEMPLATE":
            yield from _files(channels, _has_chat_template)


def _has_chat_template(path: Path) -> bool:
    if path.suffix.lower() == ".gguf":
        return _contains(path, _GGUF_TEMPLATE)
    if path.name != "tokenizer_config.json":
        return path.suffix == ".jinja" or path.name == "chat_template.json"
    try:
        return "chat_template" in read_json(path)
    except ValueError:
        return False  # the tokenizer cannot be loaded from it either


def _contains(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0


def _files(channels: list[Path], forbidden: Callable[[Path], bool]) -> Iterator[Source]:
    """Yield the forbidden files below the channels, each once."""
    files = (path for channel in channels for path in (channel, *channel.rglob("*")))
    found = {path for path in files if path.is_file() and forbidden(path)}
    yield from (Source(str(path)) for path in sorted(found))
