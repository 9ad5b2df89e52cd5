"""`lmi check` on many generated files: suggestions for mistyped keys, and no problems in valid files."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from container.explain.check import check
from container.explain.target import this_machine
from lmi_server.properties.options import by_name
from tests.container.explain.questions import CPU_MACHINE, make_model
from tests.support.paths import REPO_ROOT
from tests.support.randomness import FULL

VALID_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "MPI": {
        "option.dtype": ("auto", "fp32", "bf16"),
        "option.tensor_parallel_degree": ("1", "2", "max"),
        "option.max_rolling_batch_size": ("1", "32", "256"),
        "option.max_model_len": ("128", "8192"),
        "option.block_size": ("8", "16", "32"),
        "option.kv_cache_gb": ("0.5", "2"),
        "option.scheduling_policy": ("fcfs", "priority", "fair"),
        "option.rolling_batch": ("auto", "vllm"),
        "option.max_num_batched_tokens": ("512", "2048"),
        "job_queue_size": ("10", "1000"),
        "option.predict_timeout": ("60", "240"),
        "option.output_formatter": ("json", "jsonlines"),
    },
    "Python": {
        "batch_size": ("1", "4", "32"),
        "max_batch_delay": ("0", "100"),
        "option.dtype": ("auto", "fp32"),
        "option.max_model_len": ("128", "4096"),
        "option.model_loading_timeout": ("600",),
        "option.rolling_batch": ("disable",),
        "job_queue_size": ("10", "1000"),
        "max_request_size": ("1048576",),
    },
}


def mistype(key: str, rng: random.Random) -> str:
    """Return the key with a letter inserted, missing or replaced, or with two letters swapped."""
    position, letter = rng.randrange(len(key)), rng.choice(string.ascii_lowercase + "_")
    head, tail = key[:position], key[position:]
    return rng.choice(
        [head + letter + tail, head + tail[1:], head + letter + tail[1:], head + tail[1::-1] + tail[2:]]
    )


def suggestion(typo: str, folder: Path) -> str:
    """Return the key that `check` suggests for a mistyped one."""
    (folder / "serving.properties").write_text(f"{typo}=1\n")
    report = check(folder, {}, this_machine(CPU_MACHINE), lambda source: None)
    assert report.exit_code == 1
    _, _, hint = report.problems[0].rpartition("did you mean ")
    return hint.removesuffix("?")


def test_nearly_every_typo_gets_the_right_suggestion(tmp_path: Path) -> None:
    known, rng, wrong = by_name(), random.Random(7), []
    keys_by_typo = {mistype(key, rng): key for key in rng.sample(sorted(known), 250 if FULL else 60)}
    typos = keys_by_typo.keys() - known.keys()
    assert len(typos) >= 50
    for typo in sorted(typos):
        hint = suggestion(typo, tmp_path)
        if known.get(hint) is not known[keys_by_typo[typo]]:
            wrong.append((keys_by_typo[typo], typo, hint))
    assert len(wrong) <= 0.05 * len(typos), wrong


@pytest.mark.parametrize(
    ("typo", "key"),
    [
        ("opiton.dtype", "option.dtype"),
        ("opiton.device", "option.device"),
        ("options.device", "option.device"),
        ("optoin.dtpye", "option.dtype"),
        ("Options.DTYPE", "option.dtype"),
        ("option_dtype", "option.dtype"),
        ("opiton.minWorkers", "minWorkers"),
    ],
)
def test_a_typo_in_the_prefix_gets_the_right_suggestion(typo: str, key: str, tmp_path: Path) -> None:
    assert suggestion(typo, tmp_path) == key


def test_valid_files_have_no_problems_and_warnings(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", num_hidden_layers=2)
    (model / "tokenizer.json").write_text("{}")

    def require_valid(file: Path) -> None:
        report = check(file.parent, {}, this_machine(CPU_MACHINE), lambda source: model)
        assert (report.exit_code, report.problems, report.warnings) == (0, (), ()), file.read_text()

    for example in REPO_ROOT.glob("properties_examples/*/serving.properties"):
        require_valid(example)
    file, rng = tmp_path / "serving.properties", random.Random(11)
    for number in range(48):
        engine = ("MPI", "Python")[number % 3 == 2]
        keys = rng.sample(sorted(VALID_VALUES[engine]), rng.randint(2, 6))
        lines = [f"{key}={rng.choice(VALID_VALUES[engine][key])}" for key in keys]
        file.write_text("\n".join([f"engine={engine}", *lines, ""]))
        require_valid(file)
