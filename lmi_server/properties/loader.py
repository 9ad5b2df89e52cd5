"""Load serving.properties and the environment into an `LmiConfig`, with the source of every value.

All problems are reported at once. In the properties format, trailing blanks are part of a value. Numbers, booleans and
words cannot end in a blank, so their trailing blanks are removed with a warning. In free text (a folder, an S3 prefix)
trailing blanks are kept, with a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmi_server.config import LmiConfig, ModelSource, holds_model
from lmi_server.properties import environment, grammar, handler, rules, secure_mode
from lmi_server.properties.environment import Rank, RawSetting
from lmi_server.properties.folder_files import unused_files
from lmi_server.properties.handler import HandlerFile, Supplies
from lmi_server.properties.model_folder import (
    is_model_folder,
    missing_mount,
    missing_path,
    nested_folder,
    no_model,
)
from lmi_server.properties.option import Option, OptionValue, Status, build_config, neutral_text
from lmi_server.properties.options import OPTIONS, by_name, shown
from lmi_server.properties.problems import Problem, PropertiesError, Source
from lmi_server.values.base import BadValueError, Scalar, is_one_of
from lmi_server.values.nearest import nearest
from lmi_server.values.show import as_option, masked

FILE_NAME = "serving.properties"
_MAX_SUGGESTIONS = 20
"""Unknown keys for which the nearest known one is searched, which takes milliseconds each."""
_BATCHING = {"engine", "batch_size", "option.rolling_batch", "option.async_mode", "option.mpi_mode"}
"""Options that determine the engine."""
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """An option with the value that the server will use."""

    key: str
    value: str
    """Value as it would be written in the file. Empty if it is decided later or by the request."""
    source: str
    """`file:line`, `environment variable X`, `inferred from ...` or `default`."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, with the source of each value, warnings and notes."""

    config: LmiConfig
    values: tuple[EffectiveValue, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Examination:
    """Result of `examine` for a file and its environment."""

    file: Path
    folder: Path
    entries: tuple[grammar.Entry, ...] = ()
    values: dict[str, OptionValue] = field(default_factory=dict)
    """Value that takes effect for each option, by option name."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    handler: HandlerFile | None = None
    """User's file, if it supplies a handler."""
    has_invalid_handler: bool = False
    """Whether the user's file has a problem, so that the keys that it takes are unknown."""
    loaded: Loaded | None = None
    """Valid configuration, or None if there are problems."""

    def file_problem(self, path: Path, reason: str) -> None:
        self.problems.append(Problem(Source(str(path)), "", "", reason))


def load(path: Path, environ: Mapping[str, str], lenient: bool = False) -> Loaded:
    """Load the configuration from a folder, or from a serving.properties file, and the environment.

    The file may be missing if the environment names a model or the folder contains one. `lenient`, or
    LMI_LENIENT=true, turns problems with unknown keys and unused files into warnings.

    Raises `PropertiesError` with all problems found.
    """
    found = examine(path, environ, lenient)
    if found.loaded is None:
        raise PropertiesError(tuple(found.problems))
    return found.loaded


def examine(path: Path, environ: Mapping[str, str], lenient: bool = False) -> Examination:
    """Load the configuration like `load`, but return problems in the result instead of raising."""
    found = _read_file(_path_to_read(path, environ))
    from_environment = environment.read(environ, found.folder)
    found.problems += from_environment.problems
    found.notes += from_environment.notes
    settings = _of_one_model(_file_settings(found) + from_environment.settings, found)
    handler_options: dict[str, str] = {}
    num_problems = len(found.problems)
    code = handler.find(settings, found.folder, found.problems)
    found.has_invalid_handler = code is None and len(found.problems) > num_problems
    found.notes += code.notes if code is not None else ()
    if code is not None and code.supplies is Supplies.HANDLER:
        found.handler = code
        found.problems += handler.stepwise_calls(settings)
        settings, handler_options = handler.split(settings)
    known, unknown = _group_by_option(settings)
    if code is not None and code.formatters:
        unknown = _pass_to_formatters(unknown, code, found)
    elif found.has_invalid_handler:
        unknown = [problem for problem in unknown if not problem.key.startswith("option.")]
    for option, candidates in known.values():
        _resolve_option(option, candidates, found)
    _require_model(found)
    ignorable = [
        *unknown,
        *unused_files(_model_folders(found), code, found.folder if found.has_invalid_handler else None),
    ]
    if lenient or environment.is_lenient(environ):
        found.warnings += [f"{problem}; ignored" for problem in ignorable]
    else:
        found.problems += ignorable
    verdict = rules.apply(found.values, found.handler is not None)
    found.problems += verdict.problems
    found.problems += secure_mode.violations(environ, found.folder, found.values, code)
    with_problem = {by_name()[problem.key].name for problem in found.problems if problem.key in by_name()}
    if not found.has_invalid_handler and not _BATCHING & with_problem:
        found.notes += verdict.notes
    _note_effectless(found)
    _explain_comments(found)
    _warn_of_second_model(settings, found)
    _warn_of_second_file(found)
    found.notes += missing_mount(found.values.get("option.model_id"), found.folder)
    found.problems.sort(key=lambda problem: (bool(problem.source.variable), problem.line or 0))
    if not found.problems:
        config = build_config(found.values.values(), verdict.engine, str(found.folder))
        if code is not None and code.formatters:
            _, handler_options = handler.split(settings)
            user = handler.build(code, handler_options, found.values, environ)
            config = dataclasses.replace(config, formatter=user, formatter_roles=code.formatters)
        if found.handler is not None:
            user = handler.build(found.handler, handler_options, found.values, environ)
            source = dataclasses.replace(config.source, fetch_all_files=True)
            config = dataclasses.replace(config, handler=user, source=source)
        effective = _effective(found, verdict, config)
        found.loaded = Loaded(config, effective, tuple(found.warnings), tuple(found.notes))
    return found


def _path_to_read(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the model folder that SERVING_LOAD_MODELS names if only that one has a serving.properties, else `path`.

    In place of a folder that contains only a model folder, return that one.
    """
    path, named = nested_folder(path), environment.named_folder(environ)
    if named is None or not path.is_dir() or is_model_folder(path):
        return path
    named = nested_folder(named)
    return named if (named / FILE_NAME).is_file() else path


def _of_one_model(settings: list[RawSetting], found: Examination) -> list[RawSetting]:
    """Leave out HF_REVISION and HF_TASK if HF_MODEL_ID, to which they belong, does not name the model."""
    model = by_name()["option.model_id"]
    naming = [setting for setting in settings if setting.key in (model.name, *model.aliases)]
    winner = min(naming, key=lambda setting: setting.rank, default=None)
    named = [setting.text.strip() for setting in naming if setting.source.variable == "HF_MODEL_ID"]
    if winner is None or not named or winner.text.strip() in named:
        return settings
    left_out = [setting for setting in settings if setting.source.variable in ("HF_REVISION", "HF_TASK")]
    found.notes += [
        f"{setting.source}: not used, because {winner.source} names the model" for setting in left_out
    ]
    return [setting for setting in settings if setting not in left_out]


def _read_file(path: Path) -> Examination:
    file = path / FILE_NAME if path.is_dir() else path
    found = Examination(file, path if path.is_dir() else file.parent)
    if file.name.endswith(_ARCHIVES):
        found.file_problem(file, "archives are not supported; unpack it and pass the folder")
        return found
    if not file.exists():
        if not path.is_dir():
            found.file_problem(path, missing_path(path))
        return found
    try:
        with file.open("rb") as stream:
            data = stream.read(grammar.MAX_FILE_BYTES + 1)
    except OSError as error:
        found.file_problem(file, f"cannot be read: {error.strerror}")
        return found
    document = grammar.parse(data, str(file))
    found.entries = document.entries
    found.problems += document.problems
    found.warnings += map(str, document.warnings)
    return found


def _file_settings(found: Examination) -> list[RawSetting]:
    """Return the settings of the file. Overridden duplicates and lines with a problem are left out."""
    bad = {problem.line for problem in found.problems}
    last = {entry.key: entry for entry in found.entries}
    return [
        RawSetting(entry.key, entry.value, Source(str(found.file), entry.line), Rank.FILE)
        for entry in last.values()
        if entry.line not in bad
    ]


def _group_by_option(
    settings: list[RawSetting],
) -> tuple[dict[str, tuple[Option, list[RawSetting]]], list[Problem]]:
    """Return the settings by option, and a problem for each setting with an unknown key."""
    options = by_name()
    known: dict[str, tuple[Option, list[RawSetting]]] = {}
    unknown: list[Problem] = []
    for setting in settings:
        if (option := options.get(setting.key)) is not None:
            known.setdefault(option.name, (option, []))[1].append(setting)
            continue
        near = nearest(setting.key, _similar_kind(setting.key)) if len(unknown) < _MAX_SUGGESTIONS else ""
        if near and (variable := setting.source.variable):
            near = nearest(variable, environment.variables_of(near)) or near
        text = shown(setting.key, setting.text)
        unknown.append(Problem(setting.source, setting.key, text, "unknown key", nearest=near))
    return known, unknown


def _similar_kind(key: str) -> list[str]:
    """Return the known keys to suggest. After `option.`, these are options and the same name without `option.`."""
    if not key.startswith("option."):
        return list(by_name())
    return [name for name in by_name() if name.startswith("option.") or name == key.removeprefix("option.")]


def _pass_to_formatters(unknown: list[Problem], code: HandlerFile, found: Examination) -> list[Problem]:
    """Note the options that only the formatters may know. Return the other unknown keys."""
    own = [problem for problem in unknown if problem.key.startswith("option.")]
    found.notes += [f"{problem}; passed to the formatters in {code.path.name}" for problem in own]
    return [problem for problem in unknown if problem not in own]


def _resolve_option(option: Option, settings: list[RawSetting], found: Examination) -> None:
    """Read the setting that takes effect for an option. Note overridden settings and report conflicts."""
    winner, *losers = sorted(settings, key=lambda setting: setting.rank)
    _report_overridden(option, winner, losers, found)
    if winner.rank is Rank.SAGEMAKER:
        # The environment overrides the file, but an invalid line of the file is still reported.
        for setting in losers:
            if setting.rank is Rank.FILE:
                _value(option, setting, found)
    if any(entry.line == winner.source.line and entry.ends_in_blanks for entry in found.entries):
        effect = "kept, because they may be intended" if option.type.keep_trailing_blanks else "removed"
        reason = f"the value ends in blanks, which are part of it in the properties format; {effect}"
        masked_text = masked(winner.key, winner.text, option.secret)
        found.warnings.append(str(Problem(winner.source, winner.key, masked_text, reason)))
    value = _value(option, winner, found)
    if value is not None:
        masked_text = masked(winner.key, _strip_blanks(option, winner), option.secret)
        found.values[option.name] = OptionValue(option, value, masked_text, winner.source, winner.key)


def _report_overridden(
    option: Option, winner: RawSetting, losers: list[RawSetting], found: Examination
) -> None:
    for loser in losers:
        masked_text = masked(loser.key, loser.written, option.secret)
        if loser.text.strip() == winner.text.strip():
            continue
        if loser.rank is Rank.FILE and winner.rank is Rank.FILE:
            reason = f"{winner.key} on line {winner.source.line} is the same option with another value"
            found.problems.append(Problem(loser.source, loser.key, masked_text, reason))
        else:
            found.notes.append(
                f"{loser.source}: {masked_text} is not used, because {winner.source} takes precedence"
            )


def _strip_blanks(option: Option, setting: RawSetting) -> str:
    return setting.text if option.type.keep_trailing_blanks else setting.text.strip(" \t\f")


def _value(option: Option, setting: RawSetting, found: Examination) -> Scalar | None:
    """Return the parsed value. If it is invalid, report the problem and return None."""
    text = _strip_blanks(option, setting)
    masked_text = masked(setting.key, setting.original or text, option.secret)
    accepted_values = setting.accepted or option.type.accepted

    def refuse(reason: str, accepted: str = "", near: str = "") -> None:
        found.problems.append(Problem(setting.source, setting.key, masked_text, reason, accepted, near))

    if setting.source.variable and (reason := grammar.placeholder(text)):
        refuse(reason)
        return None
    if not text.strip():
        refuse("has no value; remove the line to use the default", accepted_values)
        return None
    try:
        value = option.type.from_text(text)
    except BadValueError as error:
        refuse(error.reason, accepted_values, error.nearest)
        return None
    if option.status is Status.REFUSED and not is_one_of(value, option.neutral):
        refuse(f"known to LMI but not supported: {option.reason}", neutral_text(option))
        return None
    return value


def _note_effectless(found: Examination) -> None:
    bad = {str(problem.source) for problem in found.problems}
    for item in found.values.values():
        if item.option.status is not Status.WORKS and item.place not in bad:
            refused = item.option.status is Status.REFUSED
            reason = "this value changes nothing here" if refused else item.option.reason
            found.notes.append(f"{item.place}: {item}: accepted without effect: {reason}")
    entry = found.values.get("option.entryPoint")
    if entry is not None and found.handler is None and entry.place not in bad:
        found.notes.append(f"{entry.place}: {entry}: the server's own text generation is used")


def _explain_comments(found: Examination) -> None:
    """Replace the reason of each problem with a value that includes a comment, which is the cause of the problem."""
    comments = {entry.line: entry.comment_problem for entry in found.entries if entry.comment_problem}
    for index, problem in enumerate(found.problems):
        if problem.line in comments and problem.key in by_name():
            explained = dataclasses.replace(problem, reason=comments[problem.line], nearest="")
            found.problems[index] = explained
            warning = str(dataclasses.replace(explained, accepted=""))
            found.warnings = [text for text in found.warnings if text != warning]


def _require_model(found: Examination) -> None:
    """Report a problem if neither the folder nor the settings provide a model: PATH is probably wrong."""
    if found.file.exists() or found.problems or found.handler or "option.model_id" in found.values:
        return
    if not holds_model(found.folder):
        found.file_problem(found.folder, no_model(found.folder))


def _model_folders(found: Examination) -> list[Path]:
    """Return the folder of serving.properties and, if it is a different one, the local folder of the model."""
    model = found.values.get("option.model_id")
    folder = ModelSource(str(model.value) if model else None, str(found.folder)).local_path
    return [found.folder] if folder == found.folder.resolve() else [found.folder, folder]


def _warn_of_second_model(settings: list[RawSetting], found: Examination) -> None:
    """Warn if HF_MODEL_ID overrides a model in the folder. LMI serves both and cannot tell them apart."""
    model = found.values.get("option.model_id")
    if model is None or not holds_model(found.folder) or len(_model_folders(found)) == 1:
        return
    if any(setting.source.variable == "HF_MODEL_ID" for setting in settings):
        found.warnings.append(
            f"{found.folder} contains a model, which is not served because option.model_id is {model.text}"
            f" ({model.place})"
        )


def _warn_of_second_file(found: Examination) -> None:
    """Warn if the model's folder, which is not the one that is served, has a serving.properties."""
    found.warnings += [
        f"{folder / FILE_NAME} is not read: only the one of the folder that is served, {found.folder}, would be"
        for folder in _model_folders(found)[1:]
        if (folder / FILE_NAME).is_file()
    ]


def _effective(found: Examination, verdict: rules.Verdict, config: LmiConfig) -> tuple[EffectiveValue, ...]:
    """Return all supported options, with defaults, and all other options that were set, in the table's order."""
    values = []
    for option in OPTIONS:
        item = found.values.get(option.name)
        works = option.status is Status.WORKS
        if found.handler is not None and not handler.is_server_option(option.name):
            continue
        if option.name == "engine":
            values.append(EffectiveValue("engine", config.engine, verdict.engine_source))
        elif item is not None:
            text = item.text if option.secret else as_option(item.value)
            values.append(EffectiveValue(option.name, text, item.place, "" if works else "without effect"))
        elif works and option.engine in ("any", config.engine):
            values.append(EffectiveValue(option.name, as_option(option.default), "default"))
    return tuple(values)
