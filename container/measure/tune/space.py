"""Search space of `lmi tune`: a file with other values of batching options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import NamedPath
from container.measure.compare.derive import derive
from container.measure.compare.selection import axes, point_name
from lmi_server.apis.admin import FIELDS
from lmi_server.properties.option import Option
from lmi_server.properties.options import by_name
from lmi_server.values.base import BadValueError
from lmi_server.values.scalars import Bool, Choice, Int
from lmi_server.values.show import as_option

MAX_SEQUENCES = "option.max_rolling_batch_size"
MAX_PROMPT_TOKENS = "option.max_rolling_batch_prefill_tokens"
_SEARCHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "MPI": {
        MAX_SEQUENCES: (0.25, 0.5, 2, 4),
        MAX_PROMPT_TOKENS: (0.25, 0.5, 2, 4, 8),
        "option.enable_chunked_prefill": (),
        "option.paged_attention": (),
        "option.batch_scheduler_policy": (),
        "option.block_size": (0.5, 2),
    },
    "Python": {"batch_size": (0.25, 0.5, 2, 4, 8), "max_batch_delay": (0, 0.25, 0.5, 2)},
}
"""Options searched by default, by engine. Numbers are multiples of the file's value; for other types all values are
tried."""
_BATCHING = {*FIELDS, *itertools.chain.from_iterable(_SEARCHED.values())}
"""Options that change which steps are computed, but not how long a step takes."""
_BASELINE_POLICY = "static_batch"
"""Emulates dynamic batching; never faster than the other policies."""

Point = tuple[str, ...]
"""A value for each axis of a space."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """A grid around one configuration. All its points share the same step times."""

    origin: NamedPath
    """The user's file, or a copy with other values of options that change step times."""
    engine: str
    origin_changes: dict[str, str]
    """Changes of the copy to the user's file, by option."""
    axes: dict[str, tuple[str, ...]]
    """Values of each option, that of `origin` first."""

    @property
    def num_points(self) -> int:
        return math.prod(map(len, self.axes.values()))

    @property
    def start(self) -> Point:
        """The point of `origin`."""
        return tuple(values[0] for values in self.axes.values())

    def changes(self, point: Point) -> dict[str, str]:
        """Return a point's changes to the user's file, by option."""
        pairs = zip(self.axes.items(), point, strict=True)
        return self.origin_changes | {key: value for (key, values), value in pairs if value != values[0]}


def read_settings(settings: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse `--search` into the values of each option, as written in a file. Raises BenchError."""
    found = {}
    for key, texts in axes(settings, "--search").items():
        option = by_name()[key]
        try:
            values = tuple(as_option(option.type.from_text(text)) for text in texts)
        except BadValueError as error:
            raise BenchError(
                f"--search: {key} {error.reason} (got {','.join(texts)}); allowed: {option.type.accepted}"
            ) from error
        found[key] = values
    return found


def search_spaces(
    file: NamedPath,
    settings: Mapping[str, Sequence[str]],
    copies_folder: Path,
    effective: Callable[[Path], Mapping[str, str]],
) -> Iterator[SearchSpace]:
    """Yield one space for each combination of the options that change step times, that of the file itself first.

    settings: from `read_settings`. copies_folder: a folder for copies of the file. effective: returns a file's
    effective values by option; empty for an invalid file, which is skipped.
    """
    others = {key: values for key, values in settings.items() if key not in _BATCHING}
    present = effective(file.path)
    lists = [_unique([present.get(key, ""), *values]) for key, values in others.items()]
    for combination in itertools.product(*lists):
        pairs = zip(others, combination, strict=True)
        origin_changes = {key: value for key, value in pairs if value != present.get(key, "")}
        origin = (
            derive(point_name(origin_changes, ""), file.path, copies_folder, origin_changes)
            if origin_changes
            else file
        )
        values = effective(origin.path)
        if not values:
            continue
        engine = values["engine"]
        tried = {
            key: _values(by_name()[key], values.get(key, ""), by) for key, by in _SEARCHED[engine].items()
        }
        tried |= {key: settings[key] for key in settings if key in _BATCHING}
        used = {key: _unique([values.get(key, ""), *several]) for key, several in tried.items()}
        searched = {key: one for key, one in used.items() if by_name()[key].engine in ("any", engine)}
        yield SearchSpace(origin, engine, origin_changes, searched)


def _values(option: Option, present: str, factors: Iterable[float]) -> Sequence[str]:
    """Return the values of an option to try. present: the file's value, or words for an open one."""
    match option.type:
        case Bool():
            return ("true", "false")
        case Choice(values=words):
            return [word for word in words if word != _BASELINE_POLICY]
        case Int(minimum=least, maximum=most):
            number = int(present) if present.isdecimal() and int(present) else int(option.example)
            numbers = (max(least, round(number * factor)) for factor in factors)
            return [str(value if most is None else min(value, most)) for value in numbers]
    raise TypeError(f"{option.name}: no values to try are known for its type")


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
