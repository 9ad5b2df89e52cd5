"""Search for a user's handler file, its checks, and the settings it receives. User code is never executed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from lmi_server.config import UserHandler
from lmi_server.properties.environment import RawSetting
from lmi_server.properties.handler_code import HandlerCode, read_code
from lmi_server.properties.option import OptionValue
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import Problem, Source
from lmi_server.values.nearest import nearest

MODEL_FILE = "model.py"
REQUIREMENTS = "requirements.txt"
BUILT_IN = "djl_python."
_PREDICTORS = ("sklearn_handler", "xgboost_handler")
"""Ends of the built-in entry points that load and call a model themselves, which this server does not."""
_CALLS_HANDLER = ("_async_service", *_PREDICTORS)
"""Ends of the built-in entry points that call a handler of model.py if there is one. The others ignore it."""
_NO_ADAPTERS = "the server registers no LoRA adapters; load them in the handler's first call"
_ENTRY_POINT = "option.entryPoint"
_OUTPUT_FORMAT = "option.output_formatter"
_NOT_INCLUDED = (
    "this server does not include it; write @init_handler and @prediction_handler (or model_fn and predict_fn) in"
    f" {MODEL_FILE}"
)
_SERVER_OPTIONS = {
    _ENTRY_POINT,
    "option.handler",
    "option.model_id",
    "option.revision",
    "option.trust_remote_code",
    "option.predict_timeout",
    "option.model_loading_timeout",
    "option.tensor_parallel_degree",
    "option.mpi_mode",
    "option.env",
    "option.pythonExecutable",
}
"""Options that the server uses when it runs a user's handler. All other options belong to the handler."""


class Supplies(Enum):
    """Kind of code that a user's file supplies."""

    HANDLER = "a handler"
    FORMATTERS = "formatters of text generation"
    UNUSED_HANDLER = "a handler that a built-in entry point replaces"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class HandlerFile:
    """A user's Python file and what it supplies."""

    path: Path
    source: Source
    """Place of the setting that names the file, or the file itself."""
    supplies: Supplies
    requirements: Path | None
    """Path of the folder's requirements.txt, or None."""
    function: str
    """Function that is to answer requests (option.handler)."""
    nearest: str = ""
    """Name in the file that is nearest to `function`, if the file supplies nothing."""
    formatters: tuple[str, ...] = ()
    """Roles of the formatters that the file marks with decorators. Empty if the file supplies a handler."""
    notes: tuple[str, ...] = ()
    """Which code answers requests, if the file has a handler and option.entryPoint is a built-in one, and functions
    that are never called."""


def find(settings: Collection[RawSetting], folder: Path, problems: list[Problem]) -> HandlerFile | None:
    """Return the user's file in a folder, or None if there is none or it has a problem."""
    entry = _effective_setting(settings, _ENTRY_POINT)
    setting = _effective_setting(settings, "option.handler")
    function = setting.text.strip() if setting else "handle"
    name = entry.text.strip() if entry else ""
    built_in = name if name.startswith(BUILT_IN) else ""
    source, key = (entry.source, entry.key) if entry else (Source(str(folder / MODEL_FILE)), "")
    not_included = Problem(source, key, name, _NOT_INCLUDED)
    if not name or built_in:
        if not (folder / MODEL_FILE).is_file():
            problems += [not_included] if built_in.endswith(_PREDICTORS) else []
            return None
        name, source, key = MODEL_FILE, Source(str(folder / MODEL_FILE)), ""
    try:
        path = _resolve_file(folder, name)
        code = read_code(path)
        requirements = _resolve_file(folder, REQUIREMENTS) if (folder / REQUIREMENTS).is_file() else None
    except ValueError as error:
        problems.append(Problem(source, key, name, str(error)))
        return None
    if built_in.endswith(_PREDICTORS) and not code.predicts(function):
        problems.append(not_included)
        return None
    file = HandlerFile(path, source, Supplies.NOTHING, requirements, function)
    file = _classify(code, built_in, file)
    if file.supplies in (Supplies.HANDLER, Supplies.FORMATTERS) and code.import_errors:
        problems += [Problem(source, key, name, error) for error in code.import_errors]
        return None
    return file


def _classify(code: HandlerCode, built_in: str, file: HandlerFile) -> HandlerFile:
    """Return the file with what it supplies. `built_in`: the built-in entry point, or empty."""
    has_handler = code.has_handler(file.function)
    calls_handler = not built_in or built_in.endswith(_CALLS_HANDLER)
    notes: tuple[str, ...] = ()
    if has_handler and built_in:
        effect = "answers requests, as" if calls_handler else "is not used, because"
        choice = "calls it" if calls_handler else "selects the server's own text generation"
        notes = (f"{file.path}: its handler {effect} option.entryPoint={built_in} {choice}",)
    if has_handler and calls_handler:
        if "register_adapter" in code.names:
            notes += (f"{file.path}: its function register_adapter is never called: {_NO_ADAPTERS}",)
        return replace(file, supplies=Supplies.HANDLER, notes=notes)
    if code.formatters:
        return replace(file, supplies=Supplies.FORMATTERS, formatters=code.formatters, notes=notes)
    supplies, near = Supplies.UNUSED_HANDLER, ""
    if not has_handler:
        supplies, near = Supplies.NOTHING, nearest(file.function, code.names)
    return replace(file, supplies=supplies, requirements=None, notes=notes, nearest=near)


def split(settings: Collection[RawSetting]) -> tuple[list[RawSetting], dict[str, str]]:
    """Return the settings that the server uses under a handler, and the texts of all options for the handler."""
    options = by_name()
    server_settings = [
        one for one in settings if is_server_option(options[one.key].name if one.key in options else one.key)
    ]
    by_rank = sorted(settings, key=lambda setting: setting.rank, reverse=True)
    handler_options = {
        one.key.removeprefix("option."): one.text for one in by_rank if one.key.startswith("option.")
    }
    return server_settings, handler_options


def without_format(settings: list[RawSetting], file: HandlerFile, notes: list[str]) -> list[RawSetting]:
    """Leave out option.output_formatter=none, which LMI's users write beside an @output_formatter."""
    setting = _effective_setting(settings, _OUTPUT_FORMAT)
    if setting is None or setting.text.strip().lower() != "none" or "output_formatter" not in file.formatters:
        return settings
    notes.append(f"{setting.source}: {setting.key}=none: {file.path.name} formats the responses")
    return [one for one in settings if one.key != _OUTPUT_FORMAT]


def stepwise_calls(settings: Collection[RawSetting]) -> list[Problem]:
    """Return a problem if LMI would call the handler once per step, with all running requests."""
    rolling, asynchronous = (
        _effective_setting(settings, name) for name in ("option.rolling_batch", "option.async_mode")
    )
    is_async = asynchronous is not None and asynchronous.text.strip().lower() == "true"
    if rolling is None or is_async or rolling.text.strip() in ("", "disable"):
        return []
    reason = "LMI would call the handler once per step; here each call gets whole requests"
    return [Problem(rolling.source, rolling.key, rolling.text, reason, "disable")]


def is_server_option(key: str) -> bool:
    """Return True if the server uses this key under a handler. All other options belong to the handler."""
    return not key.startswith("option.") or key in _SERVER_OPTIONS


def build(
    file: HandlerFile,
    handler_options: Mapping[str, str],
    values: Mapping[str, OptionValue],
    environ: Mapping[str, str],
) -> UserHandler:
    """Create the handler's configuration. `handler_options`: options for the handler, by name."""
    accept = environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "")
    workers = _number(values, "minWorkers", 1)
    return UserHandler(
        file=str(file.path),
        function="" if file.formatters else _text(values, "option.handler", "handle"),
        options={**handler_options, **({"default_accept": accept} if accept else {})},
        requirements=str(file.requirements or ""),
        min_workers=workers,
        max_workers=max(workers, _number(values, "maxWorkers", workers)),
        max_idle_seconds=_number(values, "max_idle_time", 60),
        module="" if file.formatters else _module(_text(values, _ENTRY_POINT, "")),
    )


def _number(values: Mapping[str, OptionValue], name: str, default: int) -> int:
    item = values.get(name)
    return item.value if item is not None and isinstance(item.value, int) else default


def _text(values: Mapping[str, OptionValue], name: str, default: str) -> str:
    item = values.get(name)
    return str(item.value) if item is not None else default


def _effective_setting(settings: Collection[RawSetting], name: str) -> RawSetting | None:
    option = by_name()[name]
    keys = (option.name, *option.aliases)
    return min((one for one in settings if one.key in keys), key=lambda one: one.rank, default=None)


def _module(name: str) -> str:
    """Return the dotted name by which LMI imports an entry point; empty if it names a file or built-in code."""
    return "" if "/" in name or name.endswith((".py", ".txt")) or name.startswith(BUILT_IN) else name


def _resolve_file(folder: Path, name: str) -> Path:
    """Return the path of a handler's file. Raises `ValueError` if the folder has no file of that name."""
    if "://" in name:
        raise ValueError(
            "code is not downloaded from a URL; put the file into the folder of serving.properties"
        )
    plain = name if name.endswith((".py", ".txt")) else name.replace(".", "/") + ".py"
    real = folder.resolve()
    path = (real / plain).resolve()
    if not path.is_relative_to(real):
        raise ValueError(
            f"{plain} resolves to {path}, outside of the folder {real}; the files of a handler must be inside it"
        )
    if not path.is_file():
        raise ValueError(
            f"there is no file {plain} in {real}; accepted: a Python file of that folder, such as model.py"
        )
    return path
