"""A model's description, the source of its weights, and the model, as its settings say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import lmi_kernels
from engines.config import ModelSettings
from engines.models import gguf_index
from engines.models.architectures import read_config
from engines.models.config import ModelConfig
from engines.models.decoder import Model, build_decoder
from engines.models.dummy_weights import DummyWeights
from engines.models.foreign.description import ForeignConfig
from engines.models.foreign.description import describe as describe_foreign
from engines.models.parts import Parts
from engines.models.weights import WeightReader, WeightSource
from engines.parallel import Communicator
from engines.registry import Registry
from lmi_kernels.cpu import Storage

_STORAGES = {"none": None, "int8": Storage.INT8}
"""Storage of matrices, by `option.quantize`."""


def describe(model: ModelSettings) -> ModelConfig:
    """Describe the model in the settings' folder.

    Raises:
        UnsupportedModel: it cannot run in the way that the settings name.
    """
    folder = Path(model.path)
    return describe_foreign(folder) if model.impl == "transformers" else read_config(folder)


def make_model(parts: Parts) -> Model:
    """Raises BadCheckpoint: the weights are not what the description says."""
    if isinstance(parts.config, ForeignConfig):
        # Our own models need nothing of transformers, whose import takes seconds.
        from engines.models.foreign.build import build

        return build(parts)
    return build_decoder(parts)


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
    # Ranks share what comes over a network or is dequantised; of safetensors on a disk each reads its own part.
    shared = ranges is not None or (folder / gguf_index.NAME).is_file()
    return WeightReader(folder, storage, compute, device, pack, ranges, comm if shared else None)
