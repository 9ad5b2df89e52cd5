"""Parts of a model built from weights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.models.architectures import read_config
from engines.models.parts import Parts, vocabulary
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from tests.support.tiny_models import save_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3_text"])
def test_the_embedding_scale_is_rounded_as_in_transformers(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_model(tmp_path, kind, hidden_size=54)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).model.embed_tokens
    # On this device, as on GPUs, embeddings have the dtype of the run.
    weights = WeightReader(tmp_path, dtype, dtype, torch.device("meta"))
    parts = Parts(read_config(tmp_path), weights, Communicator(), Stopwatch(time.perf_counter))
    embedding, _ = vocabulary(parts)
    weights.close()
    assert embedding.scale == float(theirs.embed_scale.to(theirs.weight.dtype))
    assert (embedding.scale == float(torch.tensor(54.0).sqrt())) == (dtype is torch.float32)
