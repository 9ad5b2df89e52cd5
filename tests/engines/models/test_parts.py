"""Parts of a model built from weights."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import lmi_kernels
from engines.layers.mlp import MoeMlp
from engines.models.architectures import read_config
from engines.models.parts import Parts, mlp, vocabulary
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu.structs import Storage
from tests.support.tiny_models import save_model


def parts_of(folder: Path, weights: WeightReader) -> Parts:
    return Parts(read_config(folder), weights, Communicator(), Stopwatch(time.perf_counter))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3_text"])
def test_the_embedding_scale_is_rounded_as_in_transformers(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_model(tmp_path, kind, hidden_size=54)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).model.embed_tokens
    # On this device, as on GPUs, embeddings have the dtype of the run.
    weights = WeightReader(tmp_path, dtype, dtype, torch.device("meta"))
    embedding, _ = vocabulary(parts_of(tmp_path, weights))
    weights.close()
    assert embedding.scale == float(theirs.embed_scale.to(theirs.weight.dtype))
    assert (embedding.scale == float(torch.tensor(54.0).sqrt())) == (dtype is torch.float32)


@pytest.mark.usefixtures("native_kernels")
def test_a_router_is_not_quantized_with_the_experts(tmp_path: Path) -> None:
    save_model(tmp_path, "mixtral")
    pack = partial(lmi_kernels.pack, storage=Storage.INT8)
    weights = WeightReader(tmp_path, torch.float32, torch.float32, torch.device("cpu"), pack)
    moe = mlp(parts_of(tmp_path, weights), layer=0)
    weights.close()
    assert isinstance(moe, MoeMlp)
    assert moe.router.native is not None
    assert moe.router.native.storage is not Storage.INT8
