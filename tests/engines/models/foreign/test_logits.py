"""Modules of transformers through the model runner, against transformers itself. The whole table: `make verify`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.mpi.runner.native_steps import NativeSteps
from tests.support.foreign_models import FOREIGN, TABLES, differences, foreign_runner, save_foreign
from tests.support.plans import plans_in_chunks, run_plans
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, save_llama

FEW = ("starcoder2-window", "olmo2", "stablelm", "phi-2", "cohere-plus", "glm4", "exaone4", "minicpm3")


@pytest.mark.parametrize("name", FEW)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    save_foreign(tmp_path, name)
    worst, same = differences(tmp_path)
    assert worst < 1e-4
    assert same


@pytest.mark.parametrize(
    ("name", "degree"), [("glm4", 2), ("cohere-plus", 2), ("starcoder2", 3), ("smollm3", 4)]
)
def test_several_ranks_compute_what_transformers_does(name: str, degree: int, tmp_path: Path) -> None:
    """Four ranks share three KV heads: two of them have the same."""
    save_foreign(tmp_path, name)
    worst, same = differences(tmp_path, degree)
    assert worst < 1e-4
    assert same


def test_greedy_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    save_foreign(tmp_path, "exaone4", seed=1)
    prompt = integers(fresh_generator(), 4, VOCAB_SIZE, 17)
    expected = load_oracle(tmp_path, "fp32").generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0]
    runner, tokens = foreign_runner(tmp_path), list(prompt)
    for _ in range(12):
        plans = plans_in_chunks([tokens], [TABLES[0]], [[len(tokens) // 2 + 1, 99]])
        tokens.append(int(run_plans(runner, plans)[0, len(tokens) - 1].argmax()))
    assert tokens == expected.tolist()


def test_a_sequence_gets_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    """Widths are multiples of a vector, as those of all real models: else torch computes the last numbers apart."""
    save_foreign(tmp_path, "starcoder2", hidden_size=96, intermediate_size=64)
    runner = foreign_runner(tmp_path)
    if not isinstance(runner.steps, NativeSteps):
        pytest.skip("native kernels are not built")
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (40, 17, 9)]
    chunks = [[11, 3, 20], [1, 16], [5]]
    together = run_plans(runner, plans_in_chunks(prompts, TABLES, chunks))
    for i, prompt in enumerate(prompts):
        alone = run_plans(runner, plans_in_chunks([prompt], [TABLES[i]], [[len(prompt)]]))
        assert torch.equal(together[i, len(prompt) - 1], alone[0, len(prompt) - 1])


@pytest.mark.parametrize("name", ["phi-1", "starcoder2"])
def test_random_weights_need_no_files(name: str, tmp_path: Path) -> None:
    save_foreign(tmp_path, name)
    (tmp_path / "model.safetensors").unlink()
    plans = plans_in_chunks([[5, 6, 7]], TABLES, [[2]])
    first, again = (run_plans(foreign_runner(tmp_path, load_format="dummy"), plans) for _ in range(2))
    assert torch.equal(first[0, 2], again[0, 2])
    assert first[0, 2].std() > 0


def test_matrices_are_quantised(tmp_path: Path) -> None:
    save_foreign(tmp_path, "starcoder2")
    plans = plans_in_chunks([[5, 6, 7, 8]], TABLES, [[4]])
    exact = run_plans(foreign_runner(tmp_path), plans)[0, 3]
    runner = foreign_runner(tmp_path)
    if not isinstance(runner.steps, NativeSteps):
        pytest.skip("native kernels are not built")
    rounded = run_plans(foreign_runner(tmp_path, quantize="int8"), plans)[0, 3]
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.2, atol=0.5)


def test_our_own_architectures_run_that_way_too(tmp_path: Path) -> None:
    save_llama(tmp_path)
    worst, same = differences(tmp_path)
    assert worst < 1e-4
    assert same


def test_the_table_is_of_many_architectures_that_are_not_our_own() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from engines.models.architectures import ARCHITECTURES

    names = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] for model_type, _ in FOREIGN.values()}
    assert len(names) >= 15
    assert names.isdisjoint(ARCHITECTURES)
