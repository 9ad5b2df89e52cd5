"""Two ranks with half of the threads each are as fast as one rank with all threads, if the heads are split evenly.

`lmi profile` with `option.tensor_parallel_degree` 1 and 2 in turn: a step of one sequence, a step of 32 sequences, and
a chunk of 256 tokens. SmolLM2's three KV heads cannot be split evenly, so its figures have no verdict. They are beside
those of a model with four KV heads, otherwise like SmolLM2, and with random weights.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from tests.support.server import properties_text
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

_SHAPES = ("a step of one sequence", "a step of 32 sequences", "a chunk of 256 tokens")
_NUM_ROUNDS = 5
_REPEATS = 50
_MAX_RATIO = 1.05


def verify(lab: Lab, report: Report) -> None:
    for name, ratios in zip(
        _SHAPES, _ratios(lab, "even", _even_model(lab), load_format="dummy"), strict=True
    ):
        text = f"4 KV heads, {name}: 2 ranks take {_spread(ratios)} times as long as 1"
        report.require(statistics.median(ratios) <= _MAX_RATIO, f"{text}, at most {_MAX_RATIO}")
    for name, ratios in zip(_SHAPES, _ratios(lab, "uneven", lab.model), strict=True):
        report.figure(f"3 KV heads, {name}: {_spread(ratios)}")


def _even_model(lab: Lab) -> Path:
    config = json.loads((lab.model / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    folder = lab.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _ratios(lab: Lab, name: str, model: Path, **options: object) -> list[list[float]]:
    """Return the time with two ranks divided by that with one, for each shape and round."""
    folder = lab.folder / name
    folders = [folder / str(degree) for degree in (1, 2)]
    for degree, each in enumerate(folders, 1):
        each.mkdir(parents=True)
        text = properties_text(model, tensor_parallel_degree=degree, kv_cache_gb=1, **options)
        (each / "serving.properties").write_text(text)
    arguments = ("profile", f"--repeats={_REPEATS}")
    rounds = [[run_lmi(each, *arguments, str(each))["steps"] for each in folders] for _ in range(_NUM_ROUNDS)]
    return [[two[i]["total"] / one[i]["total"] for one, two in rounds] for i in range(len(_SHAPES))]


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    run_alone(verify)
