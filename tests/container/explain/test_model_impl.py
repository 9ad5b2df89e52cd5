"""`option.model_impl`: native or transformers implementation of a model; and `lmi models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from container.cli import main
from container.explain.models_command import KnownModel, known_models
from container.explain.resolve import CannotServe, Resolved, resolve
from engines.config import MpiEngineConfig
from tests.container.explain.questions import CPU, GPUS, SHAPE, config, make_model

OLMO2 = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
STABLELM = {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
OWN = {"architectures": ["OwnForCausalLM"], "model_type": "own"}
NEOX = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
COHERE = {"architectures": ["CohereForCausalLM"], "model_type": "cohere"}


def _engine(resolved: Resolved) -> MpiEngineConfig:
    assert isinstance(resolved.config, MpiEngineConfig)
    return resolved.config


@pytest.mark.parametrize(
    ("changes", "option", "impl"),
    [
        ({}, "auto", "lmi"),
        ({}, "lmi", "lmi"),
        ({}, "transformers", "transformers"),
        (OLMO2, "auto", "transformers"),
        (OLMO2, "transformers", "transformers"),
        # A native architecture with an unsupported field value.
        ({"hidden_act": "tanh"}, "auto", "transformers"),
    ],
)
def test_native_implementations_are_preferred(
    tmp_path: Path, changes: dict[str, Any], option: str, impl: str
) -> None:
    resolved = resolve(config(model_impl=option), make_model(tmp_path, **changes), CPU)
    assert _engine(resolved).model.impl == impl
    assert resolved.values.get("option.model_impl", option) == impl


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        (OLMO2, {"model_impl": "lmi"}, "Olmo2ForCausalLM.*supported: .*LlamaForCausalLM"),
        (
            STABLELM,
            {"tensor_parallel_degree": 2},
            "StableLm.* runs on one rank only: transformers has no .*plan",
        ),
        (
            NEOX,
            {"model_impl": "transformers", "tensor_parallel_degree": 2},
            "GPTNeoX.* runs on one rank only: .* has .*query_key_value as colwise",
        ),
        (
            {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
            {},
            "MambaForCausalLM.*attention interface; engine=Python",
        ),
        ({"hidden_act": "tanh"}, {"model_impl": "lmi"}, "hidden_act is .tanh."),
        # An alternative spelling of a native architecture.
        (
            {"architectures": ["LLaMAForCausalLM"], "hidden_act": "unheard"},
            {"model_impl": "lmi"},
            "^hidden_act is 'unheard'",
        ),
        (
            OWN | {"auto_map": {"AutoModelForCausalLM": "own.Own"}},
            {"trust_remote_code": True},
            "not support the architecture OwnForCausalLM.*; engine=Python with",
        ),
        (OWN, {}, "no causal language model OwnForCausalLM[^;]*$"),
        ({"quantization_config": {"quant_method": "gptq"}}, {}, "the weights are quantized"),
        (OLMO2 | {"quantization_config": {"quant_method": "gptq"}}, {}, "the weights are quantized"),
    ],
)
def test_a_model_without_a_usable_implementation_is_refused(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CannotServe, match=reason):
        resolve(config(**options), make_model(tmp_path, **changes), CPU)


def test_a_model_without_a_usable_tensor_parallel_plan_runs_on_one_gpu(tmp_path: Path) -> None:
    resolved = resolve(config(), make_model(tmp_path, **STABLELM), GPUS)
    assert _engine(resolved).parallel.tp_size == 1
    assert _engine(resolved).parallel.enforce_eager
    resolved = resolve(config(model_impl="transformers"), make_model(tmp_path, **NEOX), GPUS)
    assert _engine(resolved).parallel.tp_size == 1
    resolved = resolve(config(), make_model(tmp_path, **COHERE, num_key_value_heads=9), GPUS)
    assert _engine(resolved).parallel.tp_size == 4


def test_kv_capacity_of_a_transformers_model(tmp_path: Path) -> None:
    resolved = resolve(config(kv_cache_gb=1), make_model(tmp_path, **OLMO2), CPU)
    assert resolved.kv_capacity_tokens == (1 << 30) // (2 * 30 * 3 * 64 * 4 * 16) * 16


def test_models_are_listed_with_their_implementation() -> None:
    rows = {row.architecture: row for row in known_models()}
    assert rows["LlamaForCausalLM"].way == "lmi"
    assert rows["CohereForCausalLM"] == KnownModel("CohereForCausalLM", "transformers", "any")
    assert rows["StableLmForCausalLM"].degrees == "1"
    assert "no tensor-parallel plan" in rows["StableLmForCausalLM"].note
    assert rows["MambaForCausalLM"].way == "Python"
    assert "encoder" in rows["T5ForConditionalGeneration"].note


def test_the_command_prints_the_list() -> None:
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 0
    assert "CohereForCausalLM  degree any" in result.output
    assert json.dumps(SHAPE["architectures"])[2:-2] in result.output
