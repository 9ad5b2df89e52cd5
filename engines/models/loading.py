"""Make a model's description, the source of its weights, and the model itself from `ModelSettings`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import lmi_kernels
from engines.config import ModelSettings
from engines.models.architectures import read_config
from engines.models.config import ModelConfig
from engines.models.decoder import Model, build_decoder
from engines.models.dummy_weights import DummyWeights
from engines.models.gguf_index import read_index
from engines.models.parts import Parts
from engines.models.transformers_backend.description import TransformersModelConfig
from engines.models.transformers_backend.description import describe as describe_transformers
from engines.models.weights import WeightReader, WeightSource
from engines.parallel import Communicator
from engines.registry import load
from lmi_kernels.cpu import Storage


def describe(model: ModelSettings) -> ModelConfig:
    """Describe the model in the settings' folder.

    Raises:
        UnsupportedModel: the implementation that the settings select does not support the model.
    """
    folder = Path(model.path)
    return describe_transformers(folder) if model.impl == "transformers" else read_config(folder)


def make_model(parts: Parts) -> Model:
    """Build the model. Raises `BadCheckpoint` if the weights do not match the description."""
    if isinstance(parts.config, TransformersModelConfig):
        # Imported here because importing transformers takes seconds, and other models do not need it.
        from engines.models.transformers_backend.build import build

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
    """Make the weight source that `model.load_format` selects.

    stored: `dtype` of config.json; storage, compute, device: see `WeightSource`.

    Raises:
        BadCheckpoint: the folder has no readable weights.
    """
    pack = partial(lmi_kernels.pack, storage=Storage.INT8 if model.quantize == "int8" else None)
    if model.load_format == "dummy":
        return DummyWeights(stored, storage, compute, device, pack)
    folder = Path(model.path)
    ranges = load(model.byte_ranges)(folder) if model.load_format == "stream" else None
    # Ranks share reads from a network and dequantized tensors. From safetensors on disk each rank reads its own part.
    shared = ranges is not None or read_index(folder) is not None
    return WeightReader(folder, storage, compute, device, pack, ranges, comm if shared else None)
