"""A model whose weights nobody will read (`option.load_format=dummy`): what is small is fetched, the rest stays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from container.models.files.remote import Remote, RemoteFile, Report, Snapshot, Verification
from lmi_server.config import ModelSource


def copy_name(name: str, source: ModelSource) -> str:
    """What a copy of the remote called `name` goes by: one without weights is never taken for a whole one."""
    return f"{name} (without weights)" if source.load_format == "dummy" else name


def as_wanted(remote: Remote, source: ModelSource) -> Remote:
    """The remote, or as much of it as `source` needs."""
    return WithoutWeights(remote, copy_name(remote.name, source)) if source.load_format == "dummy" else remote


@dataclass(frozen=True, slots=True)
class WithoutWeights:
    """Another `Remote` without its weights."""

    remote: Remote
    name: str

    def snapshot(self) -> Snapshot:
        return dataclasses.replace(self.remote.snapshot(), name=self.name, with_weights=False)

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        return self.remote.fetch(file, target, report)

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        return self.remote.verify(file, path)
