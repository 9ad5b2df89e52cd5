"""`lmi check PATH`: explain a configuration, its effective values on this machine, and whether it can be served here.

Opens no connection and imports no torch. `lmi serve` does what is printed: both read the configuration by
`lmi_server.properties.loader` and decide by `container.explain.resolve`.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from container.explain.resolve import CannotServe, Resolved, obstacles, resolve
from container.machine import Machine, describe
from container.models import files as model_files
from container.models import tokenizer_files
from container.models.files.bundled import BUNDLED_MODEL
from lmi_server.config import LmiConfig, ModelSource
from lmi_server.properties.grammar import Entry
from lmi_server.properties.handler import acts_on
from lmi_server.properties.loader import EffectiveValue, Examination, examine
from lmi_server.properties.option import Option, Status
from lmi_server.properties.options import by_name
from lmi_server.properties.reference import OPEN_DEFAULTS
from lmi_server.values.show import masked, one_line

Locate = Callable[[ModelSource], Path | None]
_WIDTH = 110
_INDENT = " " * 9


@dataclass(frozen=True, slots=True)
class LineExplained:
    """One line of the file."""

    line: int
    text: str
    explanation: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `lmi check`."""

    path: str
    machine: str
    lines: tuple[LineExplained, ...]
    values: tuple[EffectiveValue, ...]
    """Empty if the file is not valid."""
    model: str
    """Where the model is, and whether it is available; empty if the file is not valid."""
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]
    """Why it cannot be served here; empty if it can."""

    @property
    def can_serve(self) -> bool:
        return not self.reasons

    @property
    def exit_code(self) -> int:
        """0 for a correct configuration, even if it cannot be served here."""
        return 1 if self.problems else 0

    def render(self) -> str:
        """Plain text; its last line is `can serve here: yes` or `can serve here: no: why`."""
        parts = [self.path, f"this machine: {self.machine}"]
        if self.lines:
            parts += ["", "The file, line by line"]
            for line in self.lines:
                parts.append(f"  {line.line:>3}  {one_line(line.text)}")
                parts += textwrap.wrap(
                    line.explanation, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
                )
        if self.values:
            parts += ["", "Effective values", *_table(self.values)]
        if self.model:
            parts += ["", f"model: {self.model}"]
        parts.append("")
        for label, texts in (("note", self.notes), ("warning", self.warnings), ("error", self.problems)):
            parts += [f"{label}: {text}" for text in texts]
        parts.append(
            f"can serve here: no: {'; '.join(self.reasons)}" if self.reasons else "can serve here: yes"
        )
        return "\n".join(parts)


def check(
    path: Path,
    environ: Mapping[str, str],
    machine: Machine,
    locate: Locate = model_files.locate,
    lenient: bool = False,
    allow_remote_code: bool = False,
) -> CheckReport:
    """Examine PATH (a folder with a serving.properties, or such a file) for this machine.

    locate: finds a model's files on this disk, without work and without a connection.
    """
    found = examine(path, environ, lenient)
    lines = []
    for entry in found.entries:
        option = by_name().get(entry.key)
        text = f"{entry.key} = {masked(entry.key, entry.value, bool(option and option.secret))}"
        lines.append(LineExplained(entry.line, text, _explanation(entry, option, found)))
    values: tuple[EffectiveValue, ...] = ()
    notes = list(found.notes)
    model = ""
    if found.loaded is None:
        count = len(found.problems)
        reasons = [f"the configuration has {count} problem{'s' if count > 1 else ''}"]
    else:
        config = found.loaded.config
        folder = locate(config.source) if config.handler is None else None
        model, refusal = _model(config.source, folder) if config.handler is None else ("", "")
        resolved, reasons = _resolve(config, folder, machine, allow_remote_code)
        reasons += [refusal] if refusal else []
        # Sources are relative to the folder, which is at the head of the report.
        shorter = (
            dataclasses.replace(value, source=value.source.removeprefix(f"{found.folder}/"))
            for value in found.loaded.values
        )
        values = tuple(_with_decision(value, resolved) for value in shorter)
        notes += _notes(resolved, config, machine)
        if folder is not None and (note := tokenizer_files.note(folder, config.source.load_format)):
            notes.append(note)
        if folder is None and config.handler is None and not reasons:
            notes.append("the model's files are not on this disk, so they are not checked")
    return CheckReport(
        path=str(found.file if found.file.exists() else path),
        machine=describe(machine),
        lines=tuple(lines),
        values=values,
        model=model,
        problems=tuple(str(problem) for problem in found.problems),
        warnings=tuple(found.warnings),
        notes=tuple(notes),
        reasons=tuple(reasons),
    )


def _resolve(
    config: LmiConfig, folder: Path | None, machine: Machine, allow_remote_code: bool
) -> tuple[Resolved | None, list[str]]:
    """The decisions, and why it cannot be served. Without the model's files there are no decisions."""
    if folder is None and config.handler is None:
        return None, list(obstacles(config, machine))
    try:
        resolved = resolve(config, folder, machine, allow_remote_code)
    except CannotServe as error:
        return None, [str(error)]
    if folder is None:
        return resolved, []
    refusal = tokenizer_files.refusal(folder, config.source.load_format)
    return resolved, [refusal] if refusal else []


def _model(source: ModelSource, folder: Path | None) -> tuple[str, str]:
    """(where the model is, why it is not available); the second is empty if it is."""
    name = source.model_id or source.model_dir
    if folder is not None:
        where = "" if str(folder) == name else f" in {folder}"
        return f"{name}: ready{where}", ""
    if model_files.is_fetched(source):
        return f"{name}: not on this disk; `lmi serve` or `lmi prepare` fetches it, once", ""
    if name == BUNDLED_MODEL:
        return f"{name}: comes with this installation; `lmi serve` or `lmi prepare` converts it, once", ""
    refusal = model_files.refusal(source)
    if refusal is None:
        refusal = f"{name} holds no model: there is no config.json"
    return f"{name}: not available", refusal


def _explanation(entry: Entry, option: Option | None, found: Examination) -> str:
    if any(problem.line == entry.line for problem in found.problems):
        return "see the error below"
    if found.handler is not None and not acts_on(option.name if option else entry.key):
        return "passed to the handler"
    if option is None:
        return "unknown key; ignored"
    alias = f"another name of {option.name}. " if entry.key != option.name else ""
    again = [other.line for other in found.entries if other.key == entry.key and other.line > entry.line]
    if again:
        return f"{alias}not used: line {again[-1]} sets the key again"
    effective = found.values.get(option.name)
    if effective is not None and effective.source.line != entry.line:
        return f"{alias}not used: {effective.place} has precedence"
    effect = {
        Status.WORKS: "",
        Status.NO_EFFECT: f" Accepted without effect: {option.reason}.",
        Status.REFUSED: " Accepted: the server always does this.",
    }
    return f"{alias}{option.help}{effect[option.status]}"


def _with_decision(value: EffectiveValue, resolved: Resolved | None) -> EffectiveValue:
    """The value as decided, with the reason; open values say so."""
    if resolved is not None and value.key in resolved.origins:
        setting = f" ({value.source} says {value.value})" if value.value and value.source != "default" else ""
        decided = resolved.values[value.key] or "(at start)"
        return EffectiveValue(value.key, decided, f"{resolved.origins[value.key]}{setting}", value.note)
    if value.value:
        return value
    meaning = OPEN_DEFAULTS.get(value.key, "at start")
    return EffectiveValue(value.key, f"({meaning})", value.source, value.note)


def _notes(resolved: Resolved | None, config: LmiConfig, machine: Machine) -> list[str]:
    if resolved is None:
        notes = [machine.note] if machine.note else []
        degree = config.options.tensor_parallel_degree
        if config.engine == "MPI" and isinstance(degree, int) and degree > 1 and not machine.gpu_count:
            notes.append(
                f"without GPUs {degree} ranks would share this machine's {machine.cpu_count} core(s)"
            )
        return notes
    notes = list(resolved.notes)
    parallel = resolved.config.parallel
    if resolved.config.engine == "MPI" and parallel.device == "cpu":
        ranks = "1 rank" if parallel.tp_size == 1 else f"{parallel.tp_size} ranks"
        notes.append(f"{ranks} on the CPU, {parallel.threads_per_rank} thread(s) each")
    if resolved.kv_capacity_tokens is not None:
        notes.append(f"the KV cache holds {resolved.kv_capacity_tokens} tokens")
    return notes


def _table(values: tuple[EffectiveValue, ...]) -> list[str]:
    keys = max(len(value.key) for value in values)
    texts = max(len(one_line(value.value, 40)) for value in values)
    rows = []
    for value in values:
        note = f" ({value.note})" if value.note else ""
        rows.append(f"  {value.key:<{keys}}  {one_line(value.value, 40):<{texts}}  {value.source}{note}")
    return rows
