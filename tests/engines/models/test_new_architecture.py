"""The example of docs/contributing.md: a new architecture is a function that reads its config.json, and one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from engines.models.architectures import ARCHITECTURES, llama
from engines.models.config.activation import activation
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields
from engines.models.config.weight_names import WeightNames
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, make_runner, oracle_logits


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
    torch.manual_seed(0)
    Starcoder2ForCausalLM(
        Starcoder2Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=36,
            intermediate_size=50,
            num_hidden_layers=2,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=64,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).save_pretrained(tmp_path)
    prompt = [5, 81, 3, 44, 2, 90, 17]
    logits_by_position = run_plans(make_runner(tmp_path), plans_in_chunks([prompt], [[3, 1]], [[4, 3]]))
    expected = oracle_logits(load_oracle(tmp_path, "fp32"), prompt)
    for (_, position), logits in logits_by_position.items():
        torch.testing.assert_close(logits, expected[position], rtol=1e-4, atol=1e-4)
