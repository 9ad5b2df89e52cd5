"""The result of `lmi check`, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from typing import Any

from container.explain.prediction.memory import MemoryPrediction, gigabytes, three_digits
from container.explain.prediction.startup import StartPrediction
from lmi_server.properties.examination import EffectiveValue
from lmi_server.values.show import one_line

_WIDTH = 110
_MAX_VALUE = 48
_INDENT = " " * 9
EXIT_OK, EXIT_INVALID_FILE, EXIT_CANNOT_SERVE, EXIT_UNREADABLE_MODEL = 0, 1, 3, 4
"""Exit codes. Click exits with 2 when the command line is wrong."""


@dataclass(frozen=True, slots=True)
class LineExplained:
    """One line of the file and its explanation."""

    line: int
    text: str
    explanation: str


@dataclass(slots=True)
class CheckReport:
    """The result of `lmi check`."""

    path: str
    target: str
    """`this machine`, or the named hardware."""
    machine: str
    """One-line description of the target."""
    lines: tuple[LineExplained, ...] = ()
    values: tuple[EffectiveValue, ...] = ()
    """Empty if the file is not valid."""
    model: str = ""
    """Where the model is, and whether it is available; empty if the file is not valid or the model cannot be read."""
    memory: MemoryPrediction | None = None
    """None if the model or the memory is unknown."""
    start: StartPrediction | None = None
    advice: tuple[str, ...] = ()
    """Recommended SageMaker settings, for an instance only."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Reasons why the target cannot serve the model; empty if it can, or if that is unknown."""
    unknown: str = ""
    """Why nothing is known about the model, so that it was not checked; empty if it was."""
    unreadable: str = ""
    """Why the model's files could not be read, such as a network error; empty if they could."""
    named: bool = False
    """Whether the command line names the hardware."""

    @property
    def can_serve(self) -> bool | None:
        """Whether the target can serve the model; None if that is unknown."""
        if self.reasons:
            return False
        return None if self.unknown else True

    @property
    def exit_code(self) -> int:
        """0 for a valid file and a readable model, even if this machine cannot serve it. Named hardware must."""
        if self.problems:
            return EXIT_INVALID_FILE
        if self.unreadable:
            return EXIT_UNREADABLE_MODEL
        return EXIT_CANNOT_SERVE if self.named and not self.can_serve else EXIT_OK

    def as_object(self) -> dict[str, Any]:
        """Return all fields, `can_serve` and `exit_code`."""
        return dataclasses.asdict(self) | {"can_serve": self.can_serve, "exit_code": self.exit_code}

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(self.as_object(), indent=2)

    def render(self) -> str:
        """Return plain text that ends with `verdict`."""
        parts = [self.path, f"{self.target}: {self.machine}"]
        if self.lines:
            parts += ["", "The file, line by line"]
            for line in self.lines:
                parts.append(f"  {line.line:>3}  {one_line(line.text)}")
                parts += _wrapped(line.explanation, _INDENT)
        if self.values:
            parts += ["", "Effective values", *_table(self.values)]
        if self.model:
            parts += ["", f"model: {self.model}"]
        if self.memory is not None:
            parts += ["", f"Prediction for {self.target}", *_predicted(self.memory, self.start)]
        if self.advice:
            parts += ["", "On SageMaker", *(line for text in self.advice for line in _wrapped(text, "  "))]
        parts.append("")
        errors = (
            *self.problems,
            *([f"the model cannot be read: {self.unreadable}"] if self.unreadable else ()),
        )
        for label, texts in (("note", self.notes), ("warning", self.warnings), ("error", errors)):
            parts += [f"{label}: {text}" for text in texts]
        return "\n".join([*parts, self.verdict])

    @property
    def verdict(self) -> str:
        """One line, such as `can serve here: yes`, `can serve here: no: why` or `can serve here: unknown: why`."""
        where = f"on {self.target}" if self.named else "here"
        answer = f"unknown: {self.unknown}" if self.unknown else "yes"
        return f"can serve {where}: " + (f"no: {'; '.join(self.reasons)}" if self.reasons else answer)


@dataclass(frozen=True, slots=True)
class SeveralReports:
    """The result of `lmi check` for a folder of several models."""

    models: dict[str, CheckReport]
    """Reports by model name. Each model is checked as if it were alone."""

    @property
    def exit_code(self) -> int:
        codes = {report.exit_code for report in self.models.values()}
        by_rank = (EXIT_INVALID_FILE, EXIT_UNREADABLE_MODEL, EXIT_CANNOT_SERVE)
        return next((code for code in by_rank if code in codes), EXIT_OK)

    def to_json(self) -> str:
        """Return one JSON object: `models` by name, and `exit_code`."""
        models = {name: report.as_object() for name, report in self.models.items()}
        return json.dumps({"models": models, "exit_code": self.exit_code}, indent=2)

    def render(self) -> str:
        """Return plain text that ends with one line for each model's verdict."""
        parts = [f"{name}\n{'=' * len(name)}\n{report.render()}\n" for name, report in self.models.items()]
        return "\n".join([*parts, *(f"{name}: {report.verdict}" for name, report in self.models.items())])


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _table(values: tuple[EffectiveValue, ...]) -> list[str]:
    keys = max(len(value.key) for value in values)
    texts = max(len(one_line(value.value, _MAX_VALUE)) for value in values)
    rows = []
    for value in values:
        note = f" ({value.note})" if value.note else ""
        rows.append(
            f"  {value.key:<{keys}}  {one_line(value.value, _MAX_VALUE):<{texts}}  {value.source}{note}"
        )
    return rows


def _predicted(memory: MemoryPrediction, start: StartPrediction | None) -> list[str]:
    each = f" on each of {memory.ranks}" if memory.ranks > 1 else ""
    in_all = f"; {gigabytes(memory.weights_in_all)} in total" if each else ""
    requests = f"{memory.requests_at_once:,} request{'' if memory.requests_at_once == 1 else 's'}"
    cache, tokens = gigabytes(memory.kv_cache), f"{memory.kv_tokens:,} tokens"
    rows = {
        "weights": f"{gigabytes(memory.weights)} of {gigabytes(memory.available)}{each}{in_all}",
        "activations": f"about {gigabytes(memory.activations)}{each}, for a step of {memory.step_tokens:,} tokens",
        "KV cache": f"{cache}{each}: {tokens}, {memory.kv_bytes_per_token:,} bytes each",
        "concurrency": f"{requests} of {memory.length:,} tokens; limit: {memory.limited_by}",
        "KV at limit": f"{gigabytes(memory.kv_wanted)} over all ranks, for as many such requests as the file allows",
        "fits": f"no: {memory.shortage}" if memory.shortage else "yes",
    }
    if start is not None:
        fetch = f"about {three_digits(start.download_seconds)} s to fetch, " if start.download_seconds else ""
        rows["start"] = (
            f"{fetch}about {three_digits(start.load_seconds)} s to load {gigabytes(start.file_bytes)}"
        )
    return [f"  {name:<12}  {text}" for name, text in rows.items()]
