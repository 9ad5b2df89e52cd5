"""The command line of `lmi check`: hardware targets, exit codes, JSON, and SageMaker advice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.explain.check import check
from container.explain.target import instance_target, this_machine
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from lmi_server.config import ModelSource
from tests.container.explain.questions import CPU_MACHINE, FALCON_40B, LLAMA_3_8B, check_model
from tests.support.paths import REPO_ROOT

AWS_EXAMPLE = REPO_ROOT / "properties_examples" / "aws-post-rolling"
DRIVER = "InferenceAmiVersion=al2023-ami-sagemaker-inference-gpu-4-1"


def write_model(folder: Path, config: dict[str, Any], text: str) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "serving.properties").write_text(f"option.load_format=dummy\n{text}")
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def lmi_check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        ("", [], 0),
        ("option.dtpye=fp16\n", [], 1),
        ("option.dtpye=fp16\n", ["--instance", "ml.g5.48xlarge"], 1),
        ("", ["--instance", "ml.g5.48xlarge"], 0),
        ("option.tensor_parallel_degree=4\n", ["--instance", "ml.g5.48xlarge"], 3),
        ("", ["--instance", "ml.m7i.48xlarge"], 0),
        ("", ["--instance", "ml.c7i.4xlarge"], 3),
        ("", ["--device", "H200"], 0),
        ("", ["--device", "A10G", "--count", "2"], 3),
        ("", ["--device", "Gaudi3", "--count", "8"], 3),
    ],
)
def test_exit_codes(tmp_path: Path, text: str, arguments: list[str], code: int) -> None:
    result = lmi_check(write_model(tmp_path, FALCON_40B, text), *arguments)
    assert result.exit_code == code, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instance", "ml.g5.47xlarge"], "did you mean ml.g5.4xlarge?"),
        (["--instance", "ml.t2.medium"], "its cores and memory are not known"),
        (["--device", "A10"], "did you mean A10G?"),
        (["--count", "2"], "--count: requires --device"),
        (["--device", "CPU", "--count", "4"], "--count: not supported with --device CPU"),
        (["--device", "cpu", "--count", "4"], "--count: not supported with --device CPU"),
        (["--instance", "ml.g5.xlarge", "--device", "A10G"], "--device: not supported with --instance"),
        (["--length", "0"], "--length"),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], message: str) -> None:
    result = lmi_check("somewhere", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_each_of_several_models_is_checked(tmp_path: Path) -> None:
    for name in ("chat", "code"):
        (tmp_path / name).mkdir()
    write_model(tmp_path / "chat", LLAMA_3_8B, "")
    write_model(tmp_path / "code", FALCON_40B, "option.tensor_parallel_degree=4\n")
    result = lmi_check(str(tmp_path), "--instance", "ml.g5.12xlarge")
    *_, chat, code = result.output.splitlines()
    assert chat == "chat: can serve on ml.g5.12xlarge: yes"
    assert code.startswith("code: can serve on ml.g5.12xlarge: no: the model does not fit: ")
    assert result.exit_code == 3
    reports_json = json.loads(lmi_check(str(tmp_path), "--instance", "ml.g5.12xlarge", "--json").output)
    assert [report["can_serve"] for report in reports_json["models"].values()] == [True, False]
    write_model(tmp_path / "chat", LLAMA_3_8B, "option.dtpye=fp16\n")
    result = lmi_check(str(tmp_path), "--instance", "ml.g5.12xlarge")
    assert result.exit_code == 1
    assert "did you mean option.dtype?" in result.output


def test_json_has_the_values_of_the_text(tmp_path: Path) -> None:
    path = write_model(tmp_path, FALCON_40B, "option.tensor_parallel_degree=4\n")
    result = lmi_check(path, "--instance", "ml.g5.48xlarge", "--length", "1000", "--json")
    report_json = json.loads(result.output)
    assert report_json["exit_code"] == 3
    assert not report_json["can_serve"]
    assert report_json["target"] == "ml.g5.48xlarge"
    assert report_json["memory"]["length"] == 1000
    assert report_json["memory"]["weights"] == pytest.approx(20.9e9, rel=0.01)
    assert report_json["memory"]["shortage"] in report_json["reasons"][0]
    assert [line["line"] for line in report_json["lines"]] == [1, 2]
    assert {"key": "engine", "value": "MPI", "source": "default", "note": ""} in report_json["values"]
    text = lmi_check(path, "--instance", "ml.g5.48xlarge").output
    assert text.splitlines()[-1].startswith("can serve on ml.g5.48xlarge: no: the model does not fit: ")
    assert "20.9 GB of 24 GB on each of 4; 83.7 GB in total" in text


def advise(folder: Path, config: dict[str, Any], instance: str, text: str = "") -> str:
    return "\n".join(check_model(folder, config, text, instance_target(instance)).advice)


def test_advice_on_timeouts_for_an_instance(tmp_path: Path) -> None:
    advice = advise(tmp_path, FALCON_40B, "ml.g5.48xlarge")
    assert "model_data_download_timeout=180: the platform copies 83.7 GB" in advice
    assert "container_startup_health_check_timeout=1200: " in advice
    assert "option.predict_timeout is 240: set it to 60" in advice
    assert "for an endpoint that streams, set it to 480" in advice
    short = "option.model_loading_timeout=100\noption.predict_timeout=60\n"
    advice = advise(tmp_path, FALCON_40B, "ml.g5.48xlarge", short)
    assert "option.model_loading_timeout=100 is too short: loading takes about 84 s" in advice
    assert "container_startup_health_check_timeout=180: " in advice
    assert "within 60 s" not in advice


def test_the_download_of_a_model_counts_as_start_up_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FALCON_40B))
    file = tmp_path / "serving.properties"
    file.write_text("option.model_id=s3://bucket/falcon/\noption.tensor_parallel_degree=8\n")
    target = instance_target("ml.g5.48xlarge")
    report = check(file, {}, target, lambda source: None, describe=lambda source: tmp_path)
    advice = "\n".join(report.advice)
    assert "model_data_download_timeout" not in advice
    # The server's own limit of 1200 s begins after the download.
    assert "container_startup_health_check_timeout=1320" in advice


def test_advice_on_disk_size(tmp_path: Path) -> None:
    assert "VolumeSizeInGB=20: the instance has no local disk" in advise(
        tmp_path, LLAMA_3_8B, "ml.p3.2xlarge"
    )
    assert "VolumeSizeInGB" not in advise(tmp_path, LLAMA_3_8B, "ml.g5.xlarge")
    assert "VolumeSizeInGB=20" in advise(tmp_path, LLAMA_3_8B, "ml.m5.4xlarge")
    assert "VolumeSizeInGB" not in advise(tmp_path, LLAMA_3_8B, "ml.m5d.4xlarge")
    larger = FALCON_40B | {"num_hidden_layers": 120, "dtype": "float32"}
    advice = advise(tmp_path, larger, "ml.g5.xlarge")
    assert "the model files take 330 GB, but the instance's disk has only 250 GB" in advice


@pytest.mark.parametrize(
    ("instance", "driver"), [("ml.g5.48xlarge", True), ("ml.p3.2xlarge", False), ("ml.inf2.xlarge", False)]
)
def test_advice_on_the_gpu_driver(tmp_path: Path, instance: str, driver: bool) -> None:
    advice = advise(tmp_path, LLAMA_3_8B, instance)
    assert (DRIVER in advice) == driver
    assert ("does not run on V100" in advice) == instance.startswith("ml.p3")


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ("engine=Python\n", ("T4 does not support bf16 arithmetic; set option.dtype=fp16",)),
        ("engine=Python\noption.dtype=fp16\n", ()),
        ("engine=MPI\n", ()),
    ],
    ids=["transformers", "transformers in fp16", "own kernels"],
)
def test_a_gpu_without_bf16_gives_a_warning_if_bf16_is_used(
    tmp_path: Path, options: str, warnings: tuple[str, ...]
) -> None:
    assert (
        check_model(tmp_path, LLAMA_3_8B, options, instance_target("ml.g4dn.12xlarge")).warnings == warnings
    )


def test_an_alias_that_lmi_no_longer_reads_is_deprecated(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.s3url=s3://bucket/model/\n")
    [line] = check(
        tmp_path, {}, this_machine(CPU_MACHINE), lambda source: None, describe=lambda source: None
    ).lines
    assert line.explanation.startswith("deprecated: LMI no longer reads it. alias of option.model_id.")


def test_hardware_cannot_be_checked_without_the_models_config() -> None:
    target = instance_target("ml.g5.48xlarge")
    report = check(AWS_EXAMPLE, {}, target, lambda source: None, describe=lambda source: None)
    assert report.exit_code == 3
    assert report.memory is None
    assert report.verdict.startswith("can serve on ml.g5.48xlarge: unknown: the model is not on this disk; ")


def test_remote_downloads_the_model_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[ModelSource] = []

    def obtain(source: ModelSource, view: object) -> Path:
        fetched.append(source)
        return tmp_path

    monkeypatch.setattr(model_files, "obtain", obtain)
    (tmp_path / "config.json").write_text(json.dumps(FALCON_40B))
    result = lmi_check(str(AWS_EXAMPLE), "--instance", "ml.g5.48xlarge", "--remote")
    assert [(source.model_id, source.load_format) for source in fetched] == [
        ("s3://my-bucket/falcon-40b/", "stream")
    ]
    assert result.exit_code == 0, result.output
    assert "10.5 GB of 24 GB on each of 8" in result.output


def test_remote_reports_why_a_model_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: ModelSource, view: object) -> Path:
        raise ModelNotAvailable("s3://my-bucket/falcon-40b/: access denied")

    monkeypatch.setattr(model_files, "obtain", refuse)
    arguments = (str(AWS_EXAMPLE), "--instance", "ml.g5.48xlarge", "--remote")
    result = lmi_check(*arguments)
    assert result.exit_code == 4
    assert result.output.splitlines()[-2:] == [
        "error: the model cannot be read: s3://my-bucket/falcon-40b/: access denied",
        "can serve on ml.g5.48xlarge: unknown: s3://my-bucket/falcon-40b/: access denied",
    ]
    assert re.search(r"option\.max_rolling_batch_size +32 +serving\.properties:5", result.output)
    report_json = json.loads(lmi_check(*arguments, "--json").stdout)
    assert report_json["unreadable"] == "s3://my-bucket/falcon-40b/: access denied"
    assert (report_json["can_serve"], report_json["exit_code"]) == (None, 4)


def test_a_model_that_cannot_be_read_does_not_hide_the_reports_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: ModelSource, view: object) -> Path:
        raise ModelNotAvailable(f"{source.model_id}: no network")

    monkeypatch.setattr(model_files, "obtain", refuse)
    for name in ("far", "near"):
        (tmp_path / name).mkdir()
    (tmp_path / "far" / "serving.properties").write_text("option.model_id=s3://bucket/model/\n")
    write_model(tmp_path / "near", LLAMA_3_8B, "")
    arguments = (str(tmp_path), "--remote", "--instance", "ml.g5.12xlarge")
    result = lmi_check(*arguments)
    assert result.exit_code == 4
    assert result.output.splitlines()[-2:] == [
        "far: can serve on ml.g5.12xlarge: unknown: s3://bucket/model/: no network",
        "near: can serve on ml.g5.12xlarge: yes",
    ]
    write_model(tmp_path / "near", LLAMA_3_8B, "option.dtpye=fp16\n")
    assert lmi_check(*arguments).exit_code == 1


def test_a_model_folder_that_cannot_be_read_has_a_report_with_the_cause(tmp_path: Path) -> None:
    def refuse(source: ModelSource) -> Path:
        raise PermissionError(13, "Permission denied", "/models/private")

    (tmp_path / "serving.properties").write_text("option.model_id=/models/private\n")
    report = check(tmp_path, {}, this_machine(CPU_MACHINE), refuse)
    assert (report.exit_code, report.can_serve) == (4, False)
    assert report.render().splitlines()[-2:] == [
        "error: the model cannot be read: /models/private: Permission denied",
        "can serve here: no: /models/private: Permission denied",
    ]
    assert [value.value for value in report.values if value.key == "option.model_id"] == ["/models/private"]
