"""The example of docs/contributing.md: a new architecture is a function that reads its config.json, and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.models.architectures import ARCHITECTURES, llama
from engines.models.config.activation import activation
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields
from engines.models.config.weight_names import WeightNames
from tests.engines.models.conftest import assert_logits_match
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.tiny_models import load_oracle, make_runner
from tests.support.transformers_models import save_transformers_model


def read_starcoder2(fields: Fields) -> ModelConfig:
    """StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): Llama with LayerNorms, biases and a plain MLP."""
    biased = fields.flag("use_bias", True)
    return llama.read(
        fields,
        names=WeightNames(mlp_inputs=("mlp.c_fc",), mlp_output="mlp.c_proj"),
        norm=NormSpec(fields.positive("norm_epsilon", 1e-5), is_layer_norm=True, biased=True),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        activation=activation(fields, "hidden_act", "gelu_pytorch_tanh"),
        gated_mlp=False,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
    )


def test_an_architecture_described_by_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._targets, "Starcoder2ForCausalLM", f"{__name__}:read_starcoder2")
    save_transformers_model(tmp_path, "starcoder2")
    prompt = [5, 81, 3, 44, 2, 90, 17]
    logits_by_position = run_plans(make_runner(tmp_path), plans_in_chunks([prompt], [[3, 1]], [[4, 3]]))
    assert_logits_match(logits_by_position, load_oracle(tmp_path, "fp32"), [prompt])
