"""`lmi check` on many generated files: suggestions for mistyped keys, and no problems in valid files."""

from __future__ import annotations

import itertools
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.explain.check import check
from lmi_server.properties.options import by_name
from tests.container.explain.predictions import CPU_MACHINE, LLAMA_3_8B

ROOT = Path(__file__).parents[3]
NUM_TYPOS = 200
NUM_VALID = 60
SMALL = LLAMA_3_8B | {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
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


def typos() -> Iterator[tuple[str, str]]:
    """Yield (key, typo) with a fixed seed, without typos that are keys themselves."""
    known, rng = by_name(), random.Random(7)
    names = sorted(known)
    while True:
        key = rng.choice(names)
        if (typo := mistype(key, rng)) not in known:
            yield key, typo


def test_nearly_every_typo_gets_the_right_suggestion(tmp_path: Path) -> None:
    known, wrong = by_name(), []
    keys_by_typo = dict(reversed(pair) for pair in itertools.islice(typos(), NUM_TYPOS + 20))
    pairs = list(keys_by_typo.items())[:NUM_TYPOS]
    assert len(pairs) == NUM_TYPOS
    for typo, key in pairs:
        (tmp_path / "serving.properties").write_text(f"{typo}=1\n")
        report = check(tmp_path, {}, CPU_MACHINE, lambda source: None)
        assert report.exit_code == 1
        _, _, hint = report.problems[0].rpartition("did you mean ")
        if known.get(hint.removesuffix("?")) is not known[key]:
            wrong.append((key, typo, hint))
    assert len(wrong) <= 0.05 * NUM_TYPOS, wrong


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
    (tmp_path / "serving.properties").write_text(f"{typo}=1\n")
    report = check(tmp_path, {}, CPU_MACHINE, lambda source: None)
    assert report.problems[0].endswith(f"did you mean {key}?")


def valid_files() -> Iterator[str]:
    rng = random.Random(11)
    for number in itertools.count():
        engine = ("MPI", "Python")[number % 3 == 2]
        keys = rng.sample(sorted(VALID_VALUES[engine]), rng.randint(2, 6))
        lines = [f"{key}={rng.choice(VALID_VALUES[engine][key])}" for key in keys]
        yield "\n".join([f"engine={engine}", *lines, ""])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.json and an empty safetensors file."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SMALL))
    (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_valid_files_have_no_problems_and_warnings(tmp_path: Path, model: Path) -> None:
    folders = [path.parent for path in sorted(ROOT.glob("properties_examples/*/serving.properties"))]
    for number, text in enumerate(itertools.islice(valid_files(), NUM_VALID - len(folders))):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        (folders[-1] / "serving.properties").write_text(text)
    for folder in folders:
        report = check(folder, {}, CPU_MACHINE, lambda source: model)
        text = (folder / "serving.properties").read_text()
        assert (report.exit_code, report.problems, report.warnings) == (0, (), ()), text
