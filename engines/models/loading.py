"""The source of a model's weights, by `option.load_format`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import lmi_kernels
from engines.config import ModelSettings
from engines.models.dummy_weights import DummyWeights
from engines.models.weights import WeightReader, WeightSource
from engines.parallel import Communicator
from engines.registry import Registry
from lmi_kernels.cpu import Storage

_STORAGES = {"none": None, "int8": Storage.INT8}
"""Storage of matrices, by `option.quantize`."""


def weight_source(
    model: ModelSettings,
    stored: str,
    storage: torch.dtype,
    compute: torch.dtype | None,
    device: torch.device,
    comm: Communicator,
) -> WeightSource:
    """Make the source that `model.load_format` names.

    stored: `dtype` of config.json; storage, compute, device: as in `WeightSource`.

    Raises:
        BadCheckpoint: the folder has no weights that can be read.
    """
    pack = partial(lmi_kernels.pack, storage=_STORAGES[model.quantize])
    if model.load_format == "dummy":
        return DummyWeights(stored, storage, compute, device, pack)
    folder = Path(model.path)
    ranges = (
        Registry({"class": model.byte_ranges})["class"](folder) if model.load_format == "stream" else None
    )
    # From a network, ranks share what they read; from a disk each reads its own part.
    return WeightReader(folder, storage, compute, device, pack, ranges, comm if ranges is not None else None)
