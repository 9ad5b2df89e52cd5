"""How long an endpoint takes to load its model, predicted from sizes and rates, and the time limits that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from container.explain.hardware import Instance
from container.models import files as model_files
from container.models.errors import ModelNotAvailable
from container.models.files import choice
from container.models.files.base import RemoteScheme
from container.models.files.remote import Snapshot
from lmi_server.config import ModelSource

_DISK_RATE = 1e9
"""Bytes a second assumed for a local disk."""
_MARGIN = 2
"""Time limits are so many times the predicted time."""
_LEAST, _LONGEST = 60, 3600
"""Limits that the platform accepts, in seconds."""


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """Seconds for bytes at the rates of network and disk."""

    file_bytes: int
    download_seconds: float
    load_seconds: float
    """From the disk into memory."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of one variant, in whole seconds."""

    download: int
    """`ModelDataDownloadTimeoutInSeconds`."""
    health_check: int
    """`ContainerStartupHealthCheckTimeoutInSeconds`."""


def model_bytes(source: ModelSource) -> int:
    """The size of a model's files, on this disk or as a listing of its source says. Raises: ModelNotAvailable."""
    folder = model_files.locate(source)
    if folder is not None:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    scheme = next(one for one in model_files.SCHEMES.values() if one.owns(source))
    if not isinstance(scheme, RemoteScheme):
        raise ModelNotAvailable(f"{source.model_id}: its files are not on this disk")
    remote = scheme.remote(source)
    return choice.choose(Snapshot(remote.name, remote.list_files())).size


def predict(num_bytes: int, instance: Instance) -> StartPrediction:
    """Predict the start of a model of this size."""
    return StartPrediction(num_bytes, num_bytes / min(instance.network, _DISK_RATE), num_bytes / _DISK_RATE)


def time_limits(start: StartPrediction | None, fetched: bool, loading_timeout: float) -> TimeLimits:
    """Choose limits that leave room above the prediction; without one, the longest.

    fetched: whether the container downloads the model itself, and not the platform before it starts.
    loading_timeout: `option.model_loading_timeout`. The platform waits at least as long, so that the server gives up
    first and the log has the reason.
    """
    if start is None:
        return TimeLimits(_LONGEST, _LONGEST)
    own_download = start.download_seconds if fetched else 0.0
    health_check = max(_limit(start.load_seconds + own_download), math.ceil(loading_timeout))
    return TimeLimits(_limit(start.download_seconds), min(health_check, _LONGEST))


def _limit(seconds: float) -> int:
    """The limit for work that takes so long, in whole minutes."""
    return max(_LEAST, min(_LONGEST, 60 * math.ceil(seconds * _MARGIN / 60)))
