"""SageMaker's secure mode: the platform forbids what a model's publisher must not bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lmi_server.properties.handler import BUILT_IN, REQUIREMENTS, HandlerFile
from lmi_server.properties.option import OptionValue
from lmi_server.properties.problems import Problem, Source

_MODE = "SAGEMAKER_SECURE_MODE"
_CONTROLS = "SAGEMAKER_SECURITY_CONTROLS"
_CHANNELS = "SAGEMAKER_UNTRUSTED_CHANNELS"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
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
    """Return a problem for each thing that a control in force forbids, and for each control that is not known.

    code: the user's file with a handler or formatters.
    """
    if environ.get(_MODE, "").strip().lower() != "true":
        return []
    controls = [name.strip() for name in environ.get(_CONTROLS, "").split(",") if name.strip()]
    unknown = [name for name in controls if name not in _KNOWN]
    found = [
        Problem(
            Source(variable=_CONTROLS), "", name, "is no control that this server knows", ", ".join(_KNOWN)
        )
        for name in unknown
    ]
    channels = [
        folder,
        *(Path(name.strip()) for name in environ.get(_CHANNELS, "").split(",") if name.strip()),
    ]
    for control in controls:
        found += (
            Problem(source, "", "", f"is forbidden here by {control} ({_CONTROLS})")
            for source in _forbidden(control, channels, values, code)
        )
    return found


def _forbidden(
    control: str, channels: list[Path], values: Mapping[str, OptionValue], code: HandlerFile | None
) -> Iterator[Source]:
    """Yield the files and settings that a control forbids."""
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
            yield from _files(channels, lambda path: path.suffix in _PICKLES)
        case "DISALLOW_TRUST_REMOTE_CODE":
            trust = values.get("option.trust_remote_code")
            if trust is not None and trust.value is True:
                yield trust.source
        case "DISALLOW_CHAT_TEMPLATE":
            yield from _files(
                channels, lambda path: path.suffix == ".jinja" or path.name == "chat_template.json"
            )


def _files(channels: list[Path], forbidden: Callable[[Path], bool]) -> Iterator[Source]:
    """Yield the forbidden files below the channels, each once."""
    found = {
        path for channel in channels for path in channel.rglob("*") if forbidden(path) and path.is_file()
    }
    yield from (Source(str(path)) for path in sorted(found))
