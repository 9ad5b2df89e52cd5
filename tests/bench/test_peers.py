"""The registry of peers, the command line, and the weights that llama.cpp gets."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from container.models.gguf_convert import unpermute, weight_name
from tests.bench.__main__ import TRANSFORMERS, main
from tests.bench.in_process import RUNNERS
from tests.bench.peers import PEERS
from tests.bench.peers.gguf_file import gguf_name, permute


def test_the_peers_of_make_bench_are_known() -> None:
    assert set(TRANSFORMERS) < PEERS.keys()
    assert {"openvino-fp32", "openvino-int8", "vllm", "llama.cpp"} < PEERS.keys()


def test_runners_do_not_hide_the_packages_that_they_import() -> None:
    assert not {path.stem for path in RUNNERS.glob("*.py")} & {
        "openvino",
        "openvino_genai",
        "transformers",
        "torch",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--peers", "nobody"), "--peers: no such one (got nobody); allowed: transformers-static-4"),
        (
            ("--workloads", "s1,s9"),
            "--workloads: no such one (got s9); allowed: s1, s2, burst, single, smoke",
        ),
        (("--ours", ""), "--ours: one properties folder or more"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_weights_go_to_gguf_and_back() -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.7.self_attn.q_proj.weight"):
        assert weight_name(gguf_name(name)) == name
    weight = np.arange(48, dtype=np.float32).reshape(12, 4)
    assert (unpermute(permute(weight, 3), 3) == weight).all()
    assert (permute(weight, 3) != weight).any()
