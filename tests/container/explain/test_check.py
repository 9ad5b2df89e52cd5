"""`lmi check`: output, conclusions, and its cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from container.explain.check import CheckReport, check
from container.explain.target import this_machine
from container.models.files.bundled import BUNDLED_MODEL
from lmi_server.config import ModelSource
from tests.container.explain.questions import CPU_MACHINE as CPU
from tests.container.explain.questions import make_model
from tests.support.paths import REPO_ROOT, child_environment

EXAMPLES = REPO_ROOT / "properties_examples"


def nowhere(source: ModelSource) -> Path | None:
    return None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = make_model(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def check_text(folder: Path, text: str, environ: dict[str, str] | None = None) -> CheckReport:
    (folder / "serving.properties").write_text(text)
    return check(folder, environ or {}, this_machine(CPU))


def value_line(report: CheckReport, key: str) -> list[str]:
    [line] = [line for line in report.render().splitlines() if line.startswith(f"  {key} ")]
    return line.split(maxsplit=2)


@pytest.mark.parametrize(
    ("name", "model", "reason"),
    [
        ("aws-post-dynamic", "tiiuae/falcon-40b", "needs 8 GPUs under engine=Python; this machine has none"),
        ("aws-post-rolling", "s3://my-bucket/falcon-40b/", "needs 8 GPUs; this machine has none"),
        ("aws-post-rolling-paged", "s3://my-bucket/falcon-40b/", "needs 8 GPUs; this machine has none"),
    ],
)
def test_the_aws_files_are_valid_but_cannot_be_served_here(name: str, model: str, reason: str) -> None:
    report = check(EXAMPLES / name, {}, this_machine(CPU), nowhere)
    assert (report.exit_code, report.can_serve) == (0, False)
    assert report.model == f"{model}: not on this disk; `lmi serve` or `lmi prepare` fetches it once"
    last = report.render().splitlines()[-1]
    assert last.startswith("can serve here: no: option.tensor_parallel_degree=8 ")
    assert reason in last


def test_a_model_without_a_tokenizer_cannot_be_served(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert "has no tokenizer" in check_text(model, "").render().splitlines()[-1]


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in EXAMPLES.glob("*/serving.properties")), ids=str
)
def test_every_line_of_the_file_is_explained(folder: Path) -> None:
    report = check(folder, {}, this_machine(CPU), nowhere)
    text = (folder / "serving.properties").read_text()
    assert [line.line for line in report.lines] == list(range(1, len(text.splitlines()) + 1))
    assert all(len(line.explanation) > 20 for line in report.lines)
    assert "***" not in report.render()


def test_a_model_that_is_not_on_this_disk_is_not_said_to_be_servable(tmp_path: Path) -> None:
    environ = {"HF_MODEL_ID": "owner/model"}
    report = check(tmp_path, environ, this_machine(CPU), nowhere, describe=nowhere)
    verdict = "can serve here: unknown: the model is not on this disk; --remote reads its config.json"
    assert (report.render().splitlines()[-1], report.exit_code) == (verdict, 0)
    assert json.loads(report.to_json())["can_serve"] is None
    described = check(
        tmp_path, environ, this_machine(CPU), nowhere, describe=lambda source: make_model(tmp_path / "d")
    )
    assert described.can_serve
    assert "the model's files are not on this disk, so they were not checked" in described.notes


def test_the_bundled_model_can_be_checked_once_it_is_prepared(model: Path) -> None:
    before = check(EXAMPLES / "smollm2-rolling", {}, this_machine(CPU), nowhere)
    assert (before.can_serve, before.exit_code) == (None, 0)
    assert f"{BUNDLED_MODEL}: bundled with this installation" in before.model
    assert (
        before.verdict == "can serve here: unknown: the model is not prepared yet; `lmi prepare` prepares it"
    )
    after = check(EXAMPLES / "smollm2-rolling", {}, this_machine(CPU), lambda source: model)
    assert after.can_serve
    assert f"ready in {model}" in after.model


def test_values_are_listed_with_their_sources(model: Path) -> None:
    report = check_text(model, "\noption.block_size=16\n", {"OPTION_MAX_ROLLING_BATCH_SIZE": "4"})
    assert report.render().splitlines()[-1] == "can serve here: yes"
    assert value_line(report, "option.block_size") == ["option.block_size", "16", "serving.properties:2"]
    assert value_line(report, "option.max_rolling_batch_size")[1:] == [
        "4",
        "environment variable OPTION_MAX_ROLLING_BATCH_SIZE",
    ]
    assert value_line(report, "job_queue_size")[1:] == ["1000", "default"]
    assert value_line(report, "option.max_model_len")[1:] == ["8192", "computed: the model's context length"]
    dtype = value_line(report, "option.dtype")
    assert dtype[1] == "fp32"
    assert dtype[2].startswith("computed: on a CPU")


def test_the_engine_is_the_effective_one_with_a_note(model: Path) -> None:
    report = check_text(model, "engine=Python\noption.rolling_batch=vllm\n")
    assert value_line(report, "engine") == [
        *("engine", "MPI", "serving.properties:1: engine=Python with option.rolling_batch=vllm")
    ]
    assert sum("serving.properties:1: engine=Python with" in note for note in report.notes) == 1
    assert report.can_serve


def test_a_value_of_max_shows_the_resolved_value_and_its_source(model: Path) -> None:
    report = check_text(model, "option.tensor_parallel_degree=max\n")
    _, value, source = value_line(report, "option.tensor_parallel_degree")
    assert value == "1"
    assert source.endswith("(serving.properties:1 says max)")
    assert report.lines[0].explanation.endswith(" Becomes 1 (there is no GPU).")


def test_an_invalid_file_exits_with_1_and_lists_every_problem(model: Path) -> None:
    report = check_text(model, "option.dtpye=fp16\noption.block_size=3\n")
    text = report.render()
    assert (report.exit_code, report.can_serve) == (1, False)
    assert "did you mean option.dtype?" in text
    assert "accepted: a power of two" in text
    assert text.splitlines()[-1] == "can serve here: no: the configuration has 2 problems"


def test_the_value_of_an_unknown_key_is_not_printed(model: Path) -> None:
    (line,) = check_text(model, "option.hf_tokn=hunter2\n").lines
    assert line.text == "option.hf_tokn = ***"


def test_a_key_set_twice_is_explained_as_not_used(model: Path) -> None:
    first, second = check_text(model, "option.block_size=16\noption.block_size=32\n").lines
    assert first.explanation == "not used: line 2 sets the key again"
    assert second.explanation.startswith("Number of tokens in a KV block")


def test_an_empty_model_folder_is_reported(tmp_path: Path) -> None:
    report = check_text(tmp_path, "engine=MPI\n")
    assert (report.exit_code, report.can_serve) == (0, False)
    assert "no config.json" in report.reasons[-1]


PROGRAM = """
import os, socket, sys, time
from pathlib import Path
start = time.process_time()
def refuse(*args, **kwargs): raise SystemExit("a socket was opened")
socket.socket.connect = refuse
from container.explain.check import check
from container.explain.models_command import known_models
from container.explain.target import this_machine
from container.machine import detect
refused = [check(Path(folder), {}, this_machine(detect(os.environ))).can_serve is False for folder in sys.argv[1:]]
heavy = {"torch", "transformers", "boto3", "flask", "huggingface_hub", "httpx2"}
seconds = time.process_time() - start
list(known_models())
print(refused, sorted(heavy & set(sys.modules)), seconds < 3)
"""


def test_check_and_models_import_nothing_heavy_are_fast_and_open_no_connection(tmp_path: Path) -> None:
    olmo = make_model(tmp_path, architectures=["Olmo2ForCausalLM"], model_type="olmo2")
    (olmo / "tokenizer.json").write_text("{}")
    (olmo / "serving.properties").write_text("option.tensor_parallel_degree=1\n")
    folders = [EXAMPLES / "smollm2-rolling-paged", EXAMPLES / "aws-post-rolling", olmo]
    command = [sys.executable, "-c", PROGRAM, *map(str, folders)]
    result = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    assert result.stdout == "[False, True, False] [] True\n"
