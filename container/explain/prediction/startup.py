"""Predict how long a start takes, and recommend SageMaker timeouts for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from container.explain.hardware import image_obstacle
from container.explain.prediction.memory import gigabytes
from container.explain.target import ServingTarget
from container.models import files as model_files
from engines.models.config import ModelConfig
from engines.models.gguf_index import read_index
from engines.models.weight_files import weight_files
from lmi_server.config import LmiConfig

DISK_RATE = 1e9
"""Assumed bytes per second of a local disk, written by a download or read by all ranks together."""
_MARGIN = 2
"""Ratio of a recommended timeout to the predicted time."""
_MIN_TIMEOUT, MAX_TIMEOUT = 60, 3600
"""Limits of SageMaker's timeouts, in seconds."""
_INVOCATION_SECONDS = 60
"""Time after which SageMaker cuts off a response."""
_STREAM_SECONDS = 480
"""Time after which SageMaker cuts off a stream."""
_VOLUME_MARGIN = 1.2
HOST_IMAGE = "al2023-ami-sagemaker-inference-gpu-4-1"
"""`InferenceAmiVersion` of hosts with NVIDIA driver 580, which the CUDA image requires."""


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """Start-up time, from the network's rate and an assumed disk rate of 1 GB/s."""

    file_bytes: int
    """Size of the weight files."""
    download_seconds: float | None
    """Download by the server or by SageMaker; None if the network's rate is unknown."""
    load_seconds: float
    """Load into memory from the disk, or from S3 with option.load_format=stream."""


def predict_start(
    config: LmiConfig, folder: Path, model: ModelConfig, target: ServingTarget
) -> StartPrediction | None:
    """Predict the start; None for random weights. folder: contains weights, a GGUF index, headers or config.json."""
    if config.source.load_format == "dummy":
        return None
    gguf = read_index(folder)
    sizes = gguf.sizes.values() if gguf else (file.stat().st_size for file in weight_files(folder))
    size = sum(sizes) or model.weight_bytes(4 if model.dtype == "float32" else 2)
    network = target.instance.network if target.instance else None
    if config.source.load_format == "stream":
        return StartPrediction(size, 0.0, size / (network or DISK_RATE))
    return start_from_files(size, network)


def start_from_files(num_bytes: int, network: float | None) -> StartPrediction:
    """Predict the start of a model whose files are downloaded and then read. network: bytes per second."""
    download = num_bytes / min(network, DISK_RATE) if network else None
    return StartPrediction(num_bytes, download, num_bytes / DISK_RATE)


def platform_advice(config: LmiConfig, start: StartPrediction | None, target: ServingTarget) -> Iterator[str]:
    """Yield one sentence for each setting that a SageMaker endpoint needs."""
    if target.instance is None:
        return
    limit, fetching, loading = config.options.model_loading_timeout, 0.0, 0.0
    if start is not None:
        download, loading = start.download_seconds or 0.0, start.load_seconds
        if model_files.is_fetched(config.source):
            fetching = download
        else:
            yield (
                f"model_data_download_timeout={platform_timeout(download)}: the platform copies"
                f" {gigabytes(start.file_bytes)}, which takes about {_seconds(download)}"
            )
        if start.load_seconds * _MARGIN > limit:
            yield (
                f"option.model_loading_timeout={limit:g} is too short: loading takes about"
                f" {_seconds(start.load_seconds)}"
            )
    yield (
        f"container_startup_health_check_timeout={health_check_timeout(fetching, loading, limit)}: at least"
        f" option.model_loading_timeout ({limit:g} s); otherwise the platform stops a container that is still loading"
        " the model"
    )
    if config.server.predict_timeout > _INVOCATION_SECONDS:
        yield (
            f"a response must be complete within {_INVOCATION_SECONDS} s, but option.predict_timeout is"
            f" {config.server.predict_timeout:g}: set it to {_INVOCATION_SECONDS}, so that the server cancels requests"
            f" that the platform has already timed out. Streams may take {_STREAM_SECONDS} s, and"
            f" option.predict_timeout limits them too: for an endpoint that streams, set it to {_STREAM_SECONDS}, and"
            f' let other requests contain "timeout": {_INVOCATION_SECONDS}'
        )
    size, disk = (start.file_bytes if start else 0), target.instance.disk_bytes
    if size > disk and disk:
        yield f"the model files take {gigabytes(size)}, but the instance's disk has only {gigabytes(disk)}"
    elif size > disk and target.instance.takes_volume:
        yield (
            f"VolumeSizeInGB={volume_gb(size)}: the instance has no local disk, and the model files take"
            f" {gigabytes(size)}"
        )
    if target.device is not None and target.device.compute_capability:
        yield image_obstacle(target.device) or (
            f"InferenceAmiVersion={HOST_IMAGE}: the CUDA image needs NVIDIA driver 580, but the platform's default"
            " hosts have 470 to 550"
        )


def volume_gb(num_bytes: int) -> int:
    """Return the volume size in GB for files of this size, on an instance without local storage."""
    return math.ceil(_VOLUME_MARGIN * num_bytes / 1e9)


def health_check_timeout(download_seconds: float, load_seconds: float, loading_timeout: float) -> int:
    """Return SageMaker's timeout for a start: not before the server's own, so that its log has the reason.

    download_seconds: the container's own download, after which `option.model_loading_timeout` begins.
    """
    own = 60 * math.ceil(download_seconds / 60) + math.ceil(loading_timeout)
    return max(platform_timeout(download_seconds + load_seconds), min(MAX_TIMEOUT, own))


def platform_timeout(seconds: float) -> int:
    """Return SageMaker's timeout for work of this duration: seconds, in whole minutes."""
    minutes = math.ceil(seconds * _MARGIN / 60)
    return max(_MIN_TIMEOUT, min(MAX_TIMEOUT, 60 * minutes))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
