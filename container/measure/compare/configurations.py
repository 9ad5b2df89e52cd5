"""The configurations of a comparison, with their effective values on this machine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from container.errors import UserError
from container.explain import check as checking
from container.explain.resolve import CannotServe, obstacles
from container.explain.target import this_machine
from container.machine import Machine
from container.measure.compare.scrape import scrape
from container.models import files as model_files
from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.progress import ProgressView
from container.run import launch
from lmi_server.config import ModelSource
from lmi_server.properties import loader
from lmi_server.properties.problems import PropertiesError

_REPORTED = {
    "engine": "engine",
    "dtype": "option.dtype",
    "paged_attention": "option.paged_attention",
    "world_size": "option.tensor_parallel_degree",
}
"""Options by the label of the metric `lmi_engine_info` that has their value."""


class BadConfiguration(UserError):
    """A configuration cannot be served on this machine."""


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A configuration before its file is read."""

    name: str
    path: Path
    """A serving.properties file or a folder that contains one."""
    origin: str = ""
    """How a configuration made for this comparison was derived; empty for the user's own files."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that can be served on this machine, or a server that is running."""

    name: str
    """Unique within a comparison."""
    path: Path | None
    """Argument for `lmi serve`; None for a running server."""
    engine: str
    """`MPI` or `Python`; empty for a running server of another kind."""
    model: str
    """The model as the file or the running server names it."""
    model_folder: Path | None
    """The model's files on this disk; None for a running server."""
    tokenizer: Path | None
    """Folder with the tokenizer.json that the server uses; None for a running server."""
    values: dict[str, str]
    """Effective values by key, as `lmi check` prints them. For a running server, the values that it reports."""
    loading_timeout: float
    """Seconds within which the engine must be ready."""
    origin: str = ""
    """Same as `NamedPath.origin`."""
    url: str = ""
    """Address of a running server, without a trailing slash; empty if the comparison starts the server."""

    @property
    def dtype(self) -> str:
        return self.values.get("option.dtype", "")

    @property
    def batch_limit(self) -> int | None:
        """Maximum sequences per step (engine=MPI) or requests per batch (engine=Python); None if unknown."""
        text = self.values.get(
            "batch_size" if self.engine == "Python" else "option.max_rolling_batch_size", ""
        )
        return int(text) if text.isdecimal() else None

    def set_value(self, key: str) -> str | None:
        """Return the value of an option; None if it is not set, which `lmi check` prints in brackets."""
        value = self.values.get(key)
        return None if value is None or value.startswith("(") else value

    def has_model_of(self, other: Configuration) -> bool:
        """Return whether both serve the same model. With a running server, models are compared by name."""
        if self.model_folder is None or other.model_folder is None:
            return self.model == other.model
        return self.model_folder == other.model_folder


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model on this disk."""

    folder: Path
    tokenizer: Path
    """Folder with the tokenizer.json that the server uses."""


def preparer(environ: Mapping[str, str], view: ProgressView) -> Callable[[ModelSource], PreparedModel]:
    """Return a function that prepares models as `lmi serve` does, each once. It may raise ModelNotAvailable."""

    @functools.cache
    def prepare(source: ModelSource) -> PreparedModel:
        folder = model_files.obtain(source, view)
        cache = launch.cache_dir(environ)
        return PreparedModel(folder, tokenizer_files.obtain(folder, cache, environ, view, source.load_format))

    return prepare


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def names_for(places: Sequence[str]) -> tuple[str, ...]:
    """Name each path by its folder and each URL by host and port. A name that occurs twice gets a number."""
    plain = [urlsplit(text).netloc if is_url(text) else _plain_name(Path(text)) for text in places]
    names: list[str] = []
    for name in plain:
        numbered = (f"{name}-{number}" for number in itertools.count(1))
        free = (candidate for candidate in numbered if candidate not in (*plain, *names))
        names.append(name if plain.count(name) == 1 else next(free))
    return tuple(names)


def _plain_name(path: Path) -> str:
    resolved = path.resolve()
    if resolved.is_dir():
        return resolved.name or "root"
    return resolved.parent.name if resolved.name == loader.FILE_NAME else resolved.stem


def read_configurations(
    paths: Sequence[NamedPath],
    environ: Mapping[str, str],
    machine: Machine,
    prepare: Callable[[ModelSource], PreparedModel],
) -> tuple[Configuration, ...]:
    """Read each file, fetch its model and resolve all open values for this machine. No server is started.

    prepare: see `preparer`.
    Raises BadConfiguration, which names every configuration that cannot be served and the reason.
    """
    configs: list[Configuration] = []
    problems: list[str] = []
    for named in paths:
        try:
            configs.append(_read(named, environ, machine, prepare))
        except (PropertiesError, ModelNotAvailable, CannotServe) as error:
            text = str(error)
            problems.append(text if text.startswith(f"{named.name}: ") else f"{named.name}: {text}")
    if problems:
        raise BadConfiguration("\n".join(problems))
    return tuple(configs)


def _read(
    named: NamedPath,
    environ: Mapping[str, str],
    machine: Machine,
    prepare: Callable[[ModelSource], PreparedModel],
) -> Configuration:
    config = loader.load(named.path, environ).config
    if reasons := obstacles(config, machine):
        raise CannotServe("; ".join(reasons))
    try:
        model = prepare(config.source)
    except ModelNotAvailable as error:
        if config.handler is None:
            raise
        raise CannotServe(
            f"a handler without a model cannot be compared, as prompts are made with the model's tokenizer: {error}"
        ) from error
    report = checking.check(named.path, environ, this_machine(machine), lambda source: model.folder)
    if report.reasons:
        raise CannotServe("; ".join(report.reasons))
    return Configuration(
        name=named.name,
        path=named.path,
        engine=config.engine,
        model=config.source.model_id or str(model.folder),
        model_folder=model.folder,
        tokenizer=model.tokenizer,
        values={value.key: value.value for value in report.values},
        loading_timeout=config.options.model_loading_timeout,
        origin=named.origin,
    )


def read_running(name: str, url: str) -> Configuration:
    """Describe a running server from its `/metrics`. Raises NoMetrics."""
    info = scrape(url).engine_info
    values = {key: info[label] for label, key in _REPORTED.items() if label in info}
    return Configuration(
        name=name,
        path=None,
        engine=info.get("engine", ""),
        model=info.get("model", ""),
        model_folder=None,
        tokenizer=None,
        values=values,
        loading_timeout=0.0,
        origin="a running server",
        url=url,
    )


def differing_values(configs: Sequence[Configuration]) -> dict[str, tuple[str, ...]]:
    """Return the values of each key that differs between configurations; empty if an engine has no such key."""
    keys = dict.fromkeys(key for config in configs for key in config.values)
    rows = {key: tuple(config.values.get(key, "") for config in configs) for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def warnings(configs: Sequence[Configuration]) -> tuple[str, ...]:
    """Return warnings about different models and precisions, which make speeds hard to compare."""
    found = []
    if not all(config.has_model_of(configs[0]) for config in configs):
        models = ", ".join(f"{config.name}: {config.model}" for config in configs)
        found.append(
            f"the configurations serve different models ({models}): their tokens/s may not be comparable"
        )
    if len({config.dtype for config in configs}) > 1:
        dtypes = ", ".join(f"{config.name}: {config.dtype}" for config in configs)
        found.append(
            f"the configurations compute in different precisions ({dtypes}): tokens and speed may differ"
        )
    return tuple(found)
