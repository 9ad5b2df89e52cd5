"""Architectures that transformers selects for a config.json that names none, or a base class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from container.explain.resolve import CannotServe, resolve
from engines.models.config.selection import with_architecture
from tests.container.explain.questions import CPU, config
from tests.engines.models.conftest import assert_logits_match
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.tiny_models import SHAPES, load_oracle, make_runner, save_model
from tests.support.transformers_models import save_transformers_model


@pytest.mark.parametrize(
    ("data", "architectures"),
    [
        ({"model_type": "gpt2"}, ["GPT2LMHeadModel"]),
        ({"model_type": "t5", "is_encoder_decoder": True}, ["T5ForConditionalGeneration"]),
        ({"model_type": "own"}, None),
        ({"model_type": "gpt2", "architectures": ["GPT2Model"]}, ["GPT2LMHeadModel"]),
        ({"model_type": "bloom", "architectures": ["BloomModel"]}, ["BloomForCausalLM"]),
        # Their head would be missing.
        ({"model_type": "llama", "architectures": ["LlamaModel"]}, ["LlamaModel"]),
        (
            {"model_type": "bloom", "architectures": ["BloomModel"], "tie_word_embeddings": False},
            ["BloomModel"],
        ),
        ({"model_type": "bert", "architectures": ["BertModel"]}, ["BertModel"]),
        ({"model_type": "roberta", "architectures": ["RobertaModel"]}, ["RobertaModel"]),
        # Another class and another type.
        ({"model_type": "gpt2", "architectures": ["OwnModel"]}, ["OwnModel"]),
        ({"model_type": "own", "architectures": ["GPT2Model"]}, ["GPT2Model"]),
    ],
)
def test_the_architecture_is_that_of_the_model_type(
    data: dict[str, Any], architectures: list[str] | None
) -> None:
    assert with_architecture(data).get("architectures") == architectures


@pytest.mark.parametrize(
    ("kind", "base"), [("bloom", "BloomModel"), ("gpt2", "GPT2Model"), ("starcoder2", "Starcoder2Model")]
)
def test_a_base_model_with_a_tied_head_is_served(kind: str, base: str, tmp_path: Path) -> None:
    save = save_model if kind in SHAPES else save_transformers_model
    save(tmp_path / "whole", kind)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    folder = tmp_path / "base"
    whole.base_model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [base]
    for engine in ("MPI", "Python"):
        resolve(config(engine), folder, CPU)
    prompt = [5, 81, 3, 44, 2, 90, 17]
    impl = "lmi" if kind in SHAPES else "transformers"
    found = run_plans(make_runner(folder, impl=impl), plans_in_chunks([prompt], [[3, 1]], [[4, 3]]))
    assert_logits_match(found, load_oracle(tmp_path / "whole", "fp32"), [prompt])


@pytest.mark.parametrize("engine", ["MPI", "Python"])
def test_a_base_model_without_a_head_is_refused(engine: str, tmp_path: Path) -> None:
    save_model(tmp_path / "whole", "llama", tie_word_embeddings=False)
    AutoModelForCausalLM.from_pretrained(tmp_path / "whole").base_model.save_pretrained(tmp_path / "base")
    with pytest.raises(CannotServe, match="LlamaModel"):
        resolve(config(engine), tmp_path / "base", CPU)


def test_a_file_without_an_architecture_is_served(tmp_path: Path) -> None:
    save_model(tmp_path, "gpt2")
    file = tmp_path / "config.json"
    data = {name: value for name, value in json.loads(file.read_text()).items() if name != "architectures"}
    file.write_text(json.dumps(data))
    for engine in ("MPI", "Python"):
        resolve(config(engine), tmp_path, CPU)
