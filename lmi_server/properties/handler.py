"""Search for a user's handler file, its checks, and the settings it receives. User code is never executed here."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lmi_server.config import UserHandler
from lmi_server.properties.environment import RawSetting
from lmi_server.properties.option import OptionValue
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import Problem, Source

MODEL_FILE = "model.py"
REQUIREMENTS = "requirements.txt"
BUILT_IN = "djl_python."
_CALLS_HANDLER = ("_async_service", "sklearn_handler", "xgboost_handler")
"""Ends of the built-in entry points that call a handler of model.py if there is one. The others ignore it."""
_ENTRY_POINT = "option.entryPoint"
_MAX_FILE_BYTES = 4 << 20
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
_STAGES = {"init_handler", "prediction_handler", "predict_fn", "transform_fn"}
_FORMATTERS = {"input_formatter", "output_formatter"}


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
    formatters: tuple[str, ...] = ()
    """Roles of the formatters that the file marks with decorators. Empty if the file supplies a handler."""
    note: str = ""
    """Which code answers requests, if the file has a handler and option.entryPoint is a built-in one."""


def find(settings: Collection[RawSetting], folder: Path, problems: list[Problem]) -> HandlerFile | None:
    """Return the user's file in a folder, or None if there is none or it has a problem."""
    entry = _effective_setting(settings, _ENTRY_POINT)
    function = _effective_setting(settings, "option.handler")
    name = entry.text.strip() if entry else ""
    built_in = name if name.startswith(BUILT_IN) else ""
    source = entry.source if entry else Source(str(folder / MODEL_FILE))
    if not name or built_in:
        if not (folder / MODEL_FILE).is_file():
            return None
        name, source = MODEL_FILE, Source(str(folder / MODEL_FILE))
    try:
        path = _resolve_file(folder, name)
        has_handler, formatters = _inspect_code(path, function.text.strip() if function else "handle")
        requirements = _resolve_file(folder, REQUIREMENTS) if (folder / REQUIREMENTS).is_file() else None
    except ValueError as error:
        problems.append(
            Problem(source, entry.key if entry and source is entry.source else "", name, str(error))
        )
        return None
    note = ""
    if has_handler and built_in:
        has_handler = built_in.endswith(_CALLS_HANDLER)
        effect = "answers requests, as" if has_handler else "is not used, because"
        choice = "calls it" if has_handler else "selects the server's own text generation"
        note = f"{path}: its handler {effect} option.entryPoint={built_in} {choice}"
    if has_handler:
        return HandlerFile(path, source, Supplies.HANDLER, requirements, note=note)
    if formatters:
        return HandlerFile(path, source, Supplies.FORMATTERS, requirements, formatters, note)
    return HandlerFile(path, source, Supplies.UNUSED_HANDLER if note else Supplies.NOTHING, None, note=note)


def split(settings: Collection[RawSetting]) -> tuple[list[RawSetting], dict[str, str]]:
    """Return the settings that the server uses under a handler, and the texts of all options for the handler."""
    options = by_name()
    server_settings, by_rank = [], sorted(settings, key=lambda setting: setting.rank, reverse=True)
    for setting in settings:
        option = options.get(setting.key)
        if is_server_option(option.name if option is not None else setting.key):
            server_settings.append(setting)
    handler_options = {
        one.key.removeprefix("option."): one.text for one in by_rank if one.key.startswith("option.")
    }
    return server_settings, handler_options


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


def _inspect_code(path: Path, function: str) -> tuple[bool, tuple[str, ...]]:
    """Return whether a file has a handler, and the roles of its formatters. The file is parsed but not executed.

    Raises `ValueError` if the file cannot be read or is not valid Python. A file over 4 MiB counts as empty.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= _MAX_FILE_BYTES else b""
        tree = ast.parse(data, str(path))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise ValueError(f"is not valid Python: {place}{error.args[0] if error.args else ''}") from None
    names = set(_names(tree.body))
    has_handler = function in names or "*" in names or not names.isdisjoint(_STAGES)
    return has_handler, tuple(sorted(names & _FORMATTERS))


def _names(body: Collection[ast.stmt]) -> Iterator[str]:
    """Yield the names bound at module level and the names of the decorators used there."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name not in _FORMATTERS:
                    yield node.name
                yield from (_last_name(one) for one in node.decorator_list)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                bound = (alias.asname or alias.name for alias in aliases)
                yield from (name for name in bound if name not in _STAGES | _FORMATTERS)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=inner, orelse=other):
                yield from _names([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                yield from _names(
                    [*inner, *(one for handler in handlers for one in handler.body), *other, *last]
                )
            case ast.With(body=inner):
                yield from _names(inner)


def _last_name(decorator: ast.expr) -> str:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
