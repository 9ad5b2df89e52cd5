"""The arms of a comparison: configurations with their effective values on this machine, and the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.explain import check as checking
from container.explain.resolve import CannotServe, obstacles
from container.machine import Machine
from container.models.files import ModelNotAvailable
from container.run import launch
from lmi_server.config import ModelSource
from lmi_server.properties import loader
from lmi_server.properties.problems import PropertiesError

_BATCH_UNITS = {"MPI": "sequences a step", "Python": "requests a batch"}


class BadArm(Exception):
    """A configuration cannot be served here. The text is for a person."""


@dataclass(frozen=True, slots=True)
class Named:
    """A configuration that is to become an arm."""

    name: str
    path: Path
    """A folder with a serving.properties, or such a file."""
    origin: str = ""
    """Where it comes from, where it was made for this comparison only; else empty."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration that can be served here."""

    name: str
    """Unique within a comparison."""
    path: Path
    """What `lmi serve` is given."""
    engine: str
    """`MPI` or `Python`."""
    model: str
    """As the file calls it."""
    model_folder: Path
    """Where its files are on this disk."""
    values: dict[str, str]
    """Effective values by key, as `lmi check` prints them."""
    loading_timeout: float
    """Seconds until its engine must be ready."""
    origin: str = ""
    """As `Named` has it."""

    @property
    def configuration(self) -> str:
        """What a reader can find it by."""
        return self.origin or str(self.path)

    @property
    def batch_unit(self) -> str:
        """What a batch size of this engine counts."""
        return _BATCH_UNITS.get(self.engine, "a batch")

    @property
    def dtype(self) -> str:
        return self.values.get("option.dtype", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose effective value is not the same in all configurations."""

    key: str
    values: tuple[str, ...]
    """One for each configuration; empty where its engine has no such key."""


def names_for(paths: Sequence[Path]) -> tuple[str, ...]:
    """The folder's name for each; those that come twice get numbers."""
    plain = [_plain_name(path) for path in paths]
    taken = set(plain)
    names: list[str] = []
    for name in plain:
        if plain.count(name) == 1:
            names.append(name)
            continue
        number = 1
        while (candidate := f"{name}-{number}") in taken:
            number += 1
        taken.add(candidate)
        names.append(candidate)
    return tuple(names)


def _plain_name(path: Path) -> str:
    resolved = path.resolve()
    if resolved.is_dir():
        return resolved.name or "root"
    return resolved.parent.name if resolved.name == loader.FILE_NAME else resolved.stem


def read_arms(
    named: Sequence[Named],
    environ: Mapping[str, str],
    machine: Machine,
    obtain: Callable[[ModelSource], Path],
) -> tuple[Arm, ...]:
    """Read each file, get its model and decide what is open for this machine; starts no server.

    obtain: makes a model's files ready and gives their folder; may raise `ModelNotAvailable`.
    Raises: BadArm, naming every arm that cannot be served here and why.
    """
    arms: list[Arm] = []
    problems: list[str] = []
    for one in named:
        try:
            arms.append(_read(one, environ, machine, obtain))
        except (PropertiesError, ModelNotAvailable, CannotServe) as error:
            problems.append(f"{one.name}: {error}")
    if problems:
        raise BadArm("\n".join(problems))
    return tuple(arms)


def _read(
    named: Named,
    environ: Mapping[str, str],
    machine: Machine,
    obtain: Callable[[ModelSource], Path],
) -> Arm:
    config = loader.load(named.path, environ).config
    if reasons := obstacles(config, machine):
        raise CannotServe("; ".join(reasons))
    folder = obtain(config.source)
    allowed = launch.remote_code_allowed(environ)
    report = checking.check(named.path, environ, machine, lambda source: folder, allow_remote_code=allowed)
    if not report.can_serve:
        raise CannotServe("; ".join(report.reasons))
    return Arm(
        name=named.name,
        path=named.path,
        engine=config.engine,
        model=config.source.model_id or str(folder),
        model_folder=folder,
        values={value.key: value.value for value in report.values},
        loading_timeout=config.options.model_loading_timeout,
        origin=named.origin,
    )


def differences(arms: Sequence[Arm]) -> tuple[Difference, ...]:
    """Keys whose effective values differ, in the table's order."""
    keys = dict.fromkeys(key for arm in arms for key in arm.values)
    rows = [Difference(key, tuple(arm.values.get(key, "") for arm in arms)) for key in keys]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def warnings(arms: Sequence[Arm]) -> tuple[str, ...]:
    """Sentences on models and precisions that differ, which make speeds hard to compare."""
    found = []
    if len({arm.model_folder for arm in arms}) > 1:
        seen = ", ".join(f"{arm.name}: {arm.model}" for arm in arms)
        found.append(
            f"the configurations serve different models ({seen}): their tokens/s may not be comparable"
        )
    if len({arm.dtype for arm in arms}) > 1:
        seen = ", ".join(f"{arm.name}: {arm.dtype}" for arm in arms)
        found.append(
            f"the configurations compute in different precisions ({seen}): tokens may differ, and so may speed"
        )
    return tuple(found)
