"""Load serving.properties and the environment into an `LmiConfig`, with the source of every value.

All problems are reported at once. In the properties format, trailing blanks are part of a value. Numbers, booleans and
words cannot end in a blank, so their trailing blanks are removed with a warning. In free text (a folder, an S3 prefix)
trailing blanks are kept, with a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from lmi_server.config import MODEL_MOUNT, LmiConfig, ModelSource, holds_model
from lmi_server.properties import environment, grammar, handler, other_servers, rules, secure_mode
from lmi_server.properties.environment import Rank, RawSetting
from lmi_server.properties.examination import EffectiveValue, Examination, Loaded
from lmi_server.properties.folder_files import unused_files
from lmi_server.properties.handler import Supplies
from lmi_server.properties.model_folder import (
    is_model_folder,
    missing_mount,
    missing_path,
    nested_folder,
    no_model,
)
from lmi_server.properties.option import Status, build_config
from lmi_server.properties.options import OPTIONS, by_name
from lmi_server.properties.precedence import group_by_option, resolve_option
from lmi_server.properties.problems import Problem, PropertiesError, Source
from lmi_server.values.show import as_option

FILE_NAME = "serving.properties"
_BATCHING = {"engine", "batch_size", "option.rolling_batch", "option.async_mode", "option.mpi_mode"}
"""Options that determine the engine."""
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")


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
    settings = _settings(found, environ)
    _find_user_code(settings, found)
    server_settings, handler_options = handler.split(settings)
    if found.user_code is not None:
        settings = handler.without_format(settings, found.user_code, found.notes)
    known, unknown = group_by_option(server_settings if found.handler is not None else settings)
    for option, candidates in known.values():
        resolve_option(option, candidates, found)
    _require_model(found, environ)
    _refuse_archive(found)
    _report_unused(_not_for_user_code(unknown, found), found, lenient or environment.is_lenient(environ))
    batching = rules.apply(found.values, found.handler is not None)
    found.problems += batching.problems
    found.problems += secure_mode.violations(environ, found.folder, found.values, found.user_code)
    with_problem = {by_name()[problem.key].name for problem in found.problems if problem.key in by_name()}
    if not found.has_invalid_handler and not _BATCHING & with_problem:
        found.notes += batching.notes
    _note_effectless(found)
    _explain_comments(found)
    _warn_of_second_model(settings, found)
    _warn_of_second_file(found)
    if found.user_code is None and not found.has_invalid_handler:  # code of the user may use them
        found.notes += other_servers.variable_notes(environ, found.folder)
        found.notes += other_servers.script_notes(_model_folders(found))
    found.notes += missing_mount(found.values.get("option.model_id"), found.folder)
    found.problems.sort(key=lambda problem: (bool(problem.source.variable), problem.line or 0))
    if not found.problems:
        config = build_config(found.values.values(), batching.engine, str(found.folder))
        config = _with_user_code(config, handler_options, found, environ)
        effective = _effective(found, batching.source, config)
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


def _settings(found: Examination, environ: Mapping[str, str]) -> list[RawSetting]:
    """Return the settings of the file and the environment."""
    from_environment = environment.read(environ, found.folder)
    found.problems += from_environment.problems
    found.notes += from_environment.notes
    return _of_one_model(_file_settings(found) + from_environment.settings, found)


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
    # In a container the mount exists. Elsewhere it counts as empty, because the environment may name a model.
    is_folder = path.is_dir() or path == MODEL_MOUNT
    file = path / FILE_NAME if is_folder else path
    found = Examination(file, path if is_folder else file.parent)
    if file.name.endswith(_ARCHIVES):
        found.file_problem(file, "archives are not supported; unpack it and pass the folder")
        return found
    if not file.exists():
        if not is_folder:
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


def _find_user_code(settings: list[RawSetting], found: Examination) -> None:
    num_problems = len(found.problems)
    found.user_code = handler.find(settings, found.folder, found.problems)
    found.has_invalid_handler = found.user_code is None and len(found.problems) > num_problems
    found.notes += found.user_code.notes if found.user_code is not None else ()
    found.problems += handler.stepwise_calls(settings) if found.handler is not None else []


def _not_for_user_code(unknown: list[Problem], found: Examination) -> list[Problem]:
    """Return the unknown keys that no user's code may know. Note the options that only formatters may know."""
    may_be_own = [problem for problem in unknown if problem.key.startswith("option.")]
    code = found.user_code
    if code is not None and code.formatters:
        found.notes += [f"{problem}; passed to the formatters in {code.path.name}" for problem in may_be_own]
    elif not found.has_invalid_handler:
        return unknown
    return [problem for problem in unknown if problem not in may_be_own]


def _report_unused(unknown: list[Problem], found: Examination, lenient: bool) -> None:
    """Report unknown keys and unused files, as warnings if `lenient`."""
    invalid = found.folder if found.has_invalid_handler else None
    problems = [*unknown, *unused_files(_model_folders(found), found.user_code, invalid)]
    if lenient:
        found.warnings += [f"{problem}; ignored" for problem in problems]
    else:
        found.problems += problems


def _with_user_code(
    config: LmiConfig, options: dict[str, str], found: Examination, environ: Mapping[str, str]
) -> LmiConfig:
    """Return the configuration with the user's handler or formatters, to which `options` are passed."""
    code = found.user_code
    if code is None or code.supplies not in (Supplies.HANDLER, Supplies.FORMATTERS):
        return config
    user = handler.build(code, options, found.values, environ)
    if code.formatters:
        return dataclasses.replace(config, formatter=user, formatter_roles=code.formatters)
    source = dataclasses.replace(config.source, fetch_all_files=True)
    return dataclasses.replace(config, handler=user, source=source)


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


def _require_model(found: Examination, environ: Mapping[str, str]) -> None:
    """Report a problem if neither the folder nor the settings provide a model: PATH is probably wrong."""
    if found.file.exists() or found.problems or found.handler or "option.model_id" in found.values:
        return
    if not holds_model(found.folder):
        explain = no_model if found.folder.is_dir() else missing_path
        found.file_problem(found.folder, explain(found.folder) + other_servers.unread_model(environ))


def _refuse_archive(found: Examination) -> None:
    """Report an archive of a model. A handler may unpack one itself, but from S3 it gets the files below a prefix."""
    model = found.values.get("option.model_id")
    name = str(model.value) if model is not None else ""
    fetched = name.startswith("s3://") or found.handler is None
    if model is not None and fetched and name.endswith(_ARCHIVES) and not _model_folders(found)[-1].is_dir():
        found.problems.append(model.problem("archives are not supported; unpack it and name the folder"))


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


def _effective(found: Examination, engine_source: str, config: LmiConfig) -> tuple[EffectiveValue, ...]:
    """Return all supported options, with defaults, and all other options that were set, in the table's order."""
    values = []
    for option in OPTIONS:
        item = found.values.get(option.name)
        works = option.status is Status.WORKS
        if found.handler is not None and not handler.is_server_option(option.name):
            continue
        if option.name == "engine":
            values.append(EffectiveValue("engine", config.engine, engine_source))
        elif item is not None:
            text = item.text if option.secret else as_option(item.value)
            values.append(EffectiveValue(option.name, text, item.place, "" if works else "without effect"))
        elif works and option.engine in ("any", config.engine):
            values.append(EffectiveValue(option.name, as_option(option.default), "default"))
    return tuple(values)
