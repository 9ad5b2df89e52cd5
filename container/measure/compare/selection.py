"""Select the configurations of a comparison: files, running servers, a grid of options, parts of a gain."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from container.machine import Machine
from container.measure.bench.preflight import server_url
from container.measure.bench.workload import BenchError
from container.measure.compare import attribution, aws_post
from container.measure.compare.configurations import (
    BadConfiguration,
    Configuration,
    NamedPath,
    is_url,
    names_for,
    preparer,
    read_configurations,
    read_running,
)
from container.measure.compare.derive import derive
from container.measure.compare.plan import Plan
from container.progress import ProgressView
from lmi_server.properties.option import Status
from lmi_server.properties.options import by_name
from lmi_server.values.nearest import nearest

MAX_POINTS = 32


@dataclass(frozen=True, slots=True)
class Selection:
    """The configurations that the command line names. Raises BenchError if its options contradict each other."""

    places: tuple[str, ...] = ()
    """Folders, files and URLs."""
    settings: tuple[str, ...] = ()
    """Values of `--set`, such as `option.x=1,2,4`."""
    attribute: bool = False
    aws_post: bool = False
    examples: Path | None = None

    def __post_init__(self) -> None:
        count = len(self.places)
        if self.examples is not None and not self.aws_post:
            raise BenchError("--examples: requires --aws-post")
        if self.aws_post and (self.places or self.settings or self.attribute):
            wrong = "PATH" if self.places else "--set" if self.settings else "--attribute"
            given = f" (got {' '.join(self.places)})" if self.places else ""
            raise BenchError(f"{wrong}: not supported with --aws-post, which sets the configurations{given}")
        if self.settings and (count != 1 or is_url(self.places[0])):
            raise BenchError(
                f"--set: requires exactly one file or folder (got {' '.join(self.places) or 'none'})"
            )
        if self.settings:
            grid(self.settings)
        if self.attribute and (count != 2 or self.settings):
            raise BenchError(
                f"--attribute: requires one dynamic and one rolling configuration (got {count}"
                f"{' and --set' if self.settings else ''})"
            )
        if not self.aws_post and not self.settings and count < 2:
            raise BenchError(
                f"PATH: at least two configurations are required, or one with --set (got {count})"
            )
        for place in self.places:
            if is_url(place):
                server_url(place)


def grid(settings: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Return the points of a grid, the baseline first. If the grid has one point, the baseline is the unchanged file.

    settings: each `key=value,value`. Raises BenchError.
    """
    values = axes(settings, "--set")
    points = tuple(dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
    if len(points) > MAX_POINTS:
        raise BenchError(f"--set: too many configurations (got {len(points)}); allowed: at most {MAX_POINTS}")
    return points if len(points) > 1 else ({}, *points)


def axes(settings: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Parse the values of each option. An alias counts as the option.

    settings: each `key=value,value`; option: the command-line option, for error messages. Raises BenchError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in settings:
        key, _, rest = text.partition("=")
        values = tuple(value.strip() for value in rest.split(","))
        if key not in by_name():
            near = nearest(key, by_name())
            raise BenchError(f"{option}: unknown key (got {key}){f'; did you mean {near}?' if near else ''}")
        name = by_name()[key].name
        if name in found or not all(values) or len(set(values)) < len(values):
            raise BenchError(
                f"{option}: not a key with distinct values (got {text}); allowed: {key}=1,2,4, each key once"
            )
        found[name] = values
    return found


def point_name(point: Mapping[str, str], file_name: str) -> str:
    """Name a point, such as `max_rolling_batch_size=8 kv_cache_dtype=bf16`; `file_name` for the unchanged file."""
    return " ".join(f"{key.removeprefix('option.')}={value}" for key, value in point.items()) or file_name


def read_selection(
    selection: Selection,
    plan: Plan,
    work_folder: Path,
    environ: Mapping[str, str],
    machine: Machine,
    view: ProgressView,
) -> tuple[tuple[Configuration, ...], Plan]:
    """Read and prepare the configurations. Returns them, and the plan with the pairs to compare.

    work_folder: a folder for the files of derived configurations. Raises BadConfiguration, NoMetrics.
    """
    prepare = preparer(environ, view)

    def read(paths: Sequence[NamedPath]) -> tuple[Configuration, ...]:
        return read_configurations(paths, environ, machine, prepare)

    if selection.aws_post:
        paths = aws_post.named_paths(aws_post.examples_folder(selection.examples), work_folder)
        further = (*attribution.further_pairs(aws_post.PARTS), *aws_post.FURTHER_PAIRS)
        return read(paths), replace(plan, parts=aws_post.PARTS, further_pairs=further)
    names = names_for(selection.places)
    if selection.settings:
        file = NamedPath(names[0], Path(selection.places[0]))
        read([file])  # so that problems of the file itself are reported under its name
        points = grid(selection.settings)
        paths = tuple(
            derive(point_name(point, file.name), file.path, work_folder, point) if point else file
            for point in points
        )
        configs = read(paths)
        _require_effect(points[-1], configs)
        return configs, plan
    named = dict(zip(names, selection.places, strict=True))
    found = read([NamedPath(name, Path(place)) for name, place in named.items() if not is_url(place)])
    by_configuration = {config.name: config for config in found}
    configs = tuple(
        by_configuration.get(name) or read_running(name, server_url(place)) for name, place in named.items()
    )
    if not selection.attribute:
        return configs, plan
    added, parts = attribution.attribute_gain(configs, work_folder)
    further = attribution.further_pairs(parts)
    return (*configs, *read(added)), replace(plan, parts=parts, further_pairs=further)


def _require_effect(keys: Iterable[str], configs: Sequence[Configuration]) -> None:
    """Check that each key has an effect. The last configuration sets all keys. Raises BadConfiguration."""
    last, engines = configs[-1], {"any", *(config.engine for config in configs)}
    for option in map(by_name().__getitem__, keys):
        works = option.status is Status.WORKS and option.engine in engines
        if not works and option.name in last.values:  # other keys are for a handler
            why = option.reason or f"it applies to engine={option.engine} (got engine={last.engine})"
            raise BadConfiguration(f"--set: {option.name} has no effect: {why}")


def tokenizers_for(configs: Sequence[Configuration], tokenizer: Path | None) -> dict[str, Path]:
    """Return each configuration's tokenizer (folder or file). Running servers get the one of the first file.

    tokenizer: overrides the tokenizer of all configurations. Raises BadConfiguration.
    """
    first = next((config.tokenizer for config in configs if config.tokenizer), None)
    found = {config.name: tokenizer or config.tokenizer or first for config in configs}
    known = {name: path for name, path in found.items() if path is not None}
    if len(known) < len(found):
        raise BadConfiguration("--tokenizer: required if all configurations are running servers")
    return known
