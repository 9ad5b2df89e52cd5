"""`lmi models`: list the supported architectures, and how each is served."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import click

from engines.models.architectures import ARCHITECTURES
from engines.models.transformers_backend.description import unsupported_reason
from engines.models.transformers_backend.sources import (
    causal_architectures,
    find_source,
    generating_architectures,
)
from engines.models.transformers_backend.split import why_not_split

_WAYS = {
    "lmi": "engine=MPI, implemented by this server",
    "transformers": "engine=MPI, transformers models with this server's attention, KV cache and linear layers",
    "Python": "engine=Python only",
}
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An architecture named in config.json, and how it is served."""

    architecture: str
    way: str
    """A key of `_WAYS`."""
    degrees: str = ""
    """Tensor-parallel degrees under engine=MPI."""
    note: str = ""
    """Reason for a restriction."""


def known_models() -> Iterator[KnownModel]:
    """Yield all architectures that this server or transformers implements."""
    for name in sorted(ARCHITECTURES):
        yield KnownModel(name, "lmi", "any")
    for name in sorted(generating_architectures().difference(ARCHITECTURES)):
        yield _transformers_model(name)


def _transformers_model(name: str) -> KnownModel:
    model_type = causal_architectures().get(name)
    if model_type is None:
        return KnownModel(name, "Python", note="it has an encoder")
    source = find_source(name, model_type)
    if source is None:
        return KnownModel(name, "Python", note="its source is not in the usual place in transformers")
    if reason := unsupported_reason(source):
        return KnownModel(name, "Python", note=reason)
    alone = why_not_split(source.plan)
    return KnownModel(name, "transformers", "1" if alone else "any", alone)


@click.command()
def models() -> None:
    """List the supported architectures, how each is served, and with which tensor-parallel degrees.

    All architectures that engine=MPI serves support option.quantize on a CPU.
    """
    found = list(known_models())
    for way, title in _WAYS.items():
        rows = [row for row in found if row.way == way]
        click.secho(f"{title}: {len(rows)}", bold=True)
        for row in rows:
            degrees = f"degree {row.degrees}" if row.degrees else ""
            text = "; ".join(part for part in (degrees, row.note) if part)
            line = f"{row.architecture}  {text}"
            click.echo(textwrap.fill(line, _WIDTH, initial_indent="    ", subsequent_indent="        "))
