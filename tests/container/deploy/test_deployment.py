"""The SageMaker API calls of a deployment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from container.deploy import CannotDeploy
from container.deploy.deployment import VariantSpec, plan
from container.deploy.variables import from_command_line
from container.explain import hardware
from container.explain.hardware import Instance
from lmi_server.properties.problems import PropertiesError
from tests.container.deploy.endpoints import (
    CPU,
    GB,
    GPU,
    MODEL_DATA,
    parameters,
    planned,
    spec,
    variant_of,
    write_model,
    write_properties,
)
from tests.support.paths import REPO_ROOT


@pytest.fixture(scope="module")
def service() -> Any:
    """botocore's description of SageMaker."""
    return botocore.session.get_session().get_service_model("sagemaker")


@pytest.mark.parametrize("instance", [GPU, CPU], ids=["GPU", "CPU"])
def test_botocore_accepts_every_call(instance: Instance, service: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI", "option.max_rolling_batch_size=64")
    for call in planned(folder, instance=instance, environment={"A": "b"}).calls:
        operation = service.operation_model("".join(word.title() for word in call.method.split("_")))
        report = ParamValidator().validate(call.parameters, operation.input_shape)
        assert report.generate_report() == ""


def test_with_a_prefix_the_platform_downloads_the_model_and_the_model_id_is_unset(tmp_path: Path) -> None:
    deployment = planned(write_model(tmp_path, "engine=MPI", f"option.model_id={tmp_path}"))
    container = parameters(deployment, "create_model")["PrimaryContainer"]
    assert container["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": MODEL_DATA,
        "S3DataType": "S3Prefix",
        "CompressionType": "None",
    }
    assert "OPTION_MODEL_ID" not in container["Environment"]
    assert any(f"serving.properties under {MODEL_DATA} takes precedence" in note for note in deployment.notes)


def test_a_model_id_of_the_command_line_is_kept(tmp_path: Path) -> None:
    file = "/opt/ml/model/model-Q4_K_M.gguf"
    deployment = planned(
        write_properties(tmp_path, "engine=MPI", f"option.model_id={tmp_path}"),
        environment={"OPTION_MODEL_ID": file},
    )
    container = parameters(deployment, "create_model")["PrimaryContainer"]
    assert container["Environment"]["OPTION_MODEL_ID"] == file
    assert not any("is not used" in note for note in deployment.notes)


def test_the_file_overrides_the_other_variables_as_in_a_container(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI", "option.max_rolling_batch_size=64")
    deployment = planned(folder, environment={"OPTION_MAX_ROLLING_BATCH_SIZE": "8"})
    container = parameters(deployment, "create_model")["PrimaryContainer"]
    assert container["Environment"]["OPTION_MAX_ROLLING_BATCH_SIZE"] == "64"
    name, file = "OPTION_MAX_ROLLING_BATCH_SIZE", folder / "serving.properties"
    note = f"environment variable {name}: 8 is not used, because {file}:2 takes precedence"
    assert f"variant AllTraffic: {note}" in deployment.notes


def test_without_a_prefix_the_container_downloads_the_model(tmp_path: Path) -> None:
    folder = write_properties(tmp_path, "option.model_id=HuggingFaceTB/SmolLM2-135M-Instruct")
    deployment = planned(folder, model_data=None)
    container = parameters(deployment, "create_model")["PrimaryContainer"]
    assert container["Environment"]["OPTION_MODEL_ID"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "ModelDataSource" not in container
    assert "ModelDataDownloadTimeoutInSeconds" not in variant_of(deployment)


def test_a_handler_needs_a_prefix(tmp_path: Path) -> None:
    write_properties(tmp_path, "engine=Python")
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return inputs\n")
    with pytest.raises(CannotDeploy, match=r"Python files of a handler; .*--model-data"):
        planned(tmp_path, model_data=None)


def test_the_ami_has_the_cuda_version_of_the_dockerfile(service: Any) -> None:
    base = re.search(r"nvidia/cuda:(\d+\.\d+)", (REPO_ROOT / "Dockerfile").read_text())
    assert base is not None
    shape = service.shape_for("ProductionVariant").members["InferenceAmiVersion"]
    assert "al2023-ami-sagemaker-inference-gpu-4-1" in shape.enum
    assert f"CUDA version: {base[1]}" in re.sub(r"<[^>]*>", "", shape.documentation).split("gpu-4-1")[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_data": None}, r"cannot read the model folder /\S+; .*--model-data"),
        ({"model_data": "s3://bucket/prefix"}, r"file:///path/ for lmi endpoint, with a trailing slash"),
        ({"name": "n" * 60}, "at most 63 characters"),
        (
            {"instance": hardware.instance("ml.p3.2xlarge")},
            "--instance ml.p3.2xlarge: the CUDA image is built with CUDA 13, which does not run on V100",
        ),
        (
            {"instance": hardware.instance("ml.inf2.xlarge")},
            "--instance ml.inf2.xlarge: this server runs on CPUs and NVIDIA GPUs, not on Inferentia2",
        ),
    ],
    ids=["a local folder", "prefix without a slash", "long name", "V100", "Inferentia2"],
)
def test_what_cannot_be_deployed_is_rejected(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CannotDeploy, match=reason):
        planned(write_model(tmp_path, "engine=MPI"), **changes)


@pytest.mark.parametrize("name", ["my_endpoint", "-a", "a-", "é", ""])
def test_names_that_sagemaker_rejects_are_rejected(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    allowed = f"not a SageMaker name (got {name!r}); allowed: letters and digits, with hyphens between"
    with pytest.raises(CannotDeploy, match=re.escape(f"--name: {allowed}")):
        planned(folder, name=name)
    with pytest.raises(CannotDeploy, match=re.escape(f"--variant: {allowed}")):
        plan(spec(), [VariantSpec("a--B-1", folder), VariantSpec(name, folder)])


def test_repeated_variants_are_rejected(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(CannotDeploy, match="A is repeated"):
        plan(spec(), [VariantSpec("A", folder), VariantSpec("A", folder)])


def test_instances_without_local_storage_get_a_volume_for_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI", num_bytes=100 * GB)
    assert "VolumeSizeInGB" not in variant_of(planned(folder))
    assert 100 < variant_of(planned(folder, instance=CPU))["VolumeSizeInGB"] <= 512
    for name in ("ml.m5d.xlarge", "ml.c5d.4xlarge", "ml.r5dn.large"):
        assert "VolumeSizeInGB" not in variant_of(planned(folder, instance=hardware.instance(name)))


def test_a_small_model_does_not_get_a_small_volume(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI", num_bytes=GB // 4)
    assert variant_of(planned(folder, instance=CPU))["VolumeSizeInGB"] == 30


def test_timeouts_grow_with_the_model_size(tmp_path: Path) -> None:
    small = variant_of(planned(write_model(tmp_path / "s", "engine=MPI", num_bytes=GB)))
    large = variant_of(planned(write_model(tmp_path / "l", "engine=MPI", num_bytes=900 * GB)))
    for limit in ("ModelDataDownloadTimeoutInSeconds", "ContainerStartupHealthCheckTimeoutInSeconds"):
        assert 60 <= small[limit] < large[limit] <= 3600


@pytest.mark.parametrize("in_file", [True, False])
def test_the_health_check_timeout_is_the_model_loading_timeout(in_file: bool, tmp_path: Path) -> None:
    lines = ["option.model_loading_timeout=1500"] if in_file else []
    environment = {} if in_file else {"SAGEMAKER_STARTUP_TIMEOUT": "1500"}
    deployment = planned(write_model(tmp_path, *lines), environment=environment)
    assert variant_of(deployment)["ContainerStartupHealthCheckTimeoutInSeconds"] == 1500


def test_a_model_of_unknown_size_gets_the_longest_timeouts(tmp_path: Path) -> None:
    deployment = planned(write_properties(tmp_path, "engine=MPI"), model_data="s3://no_such_bucket_here/x/")
    row = variant_of(deployment)
    assert row["ModelDataDownloadTimeoutInSeconds"] == 3600
    assert row["ContainerStartupHealthCheckTimeoutInSeconds"] == 3600
    assert any("size of the model is unknown" in note for note in deployment.notes)


def test_resource_names_change_only_with_their_content(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "option.max_rolling_batch_size=8")
    first, again = planned(folder), planned(folder)
    assert first == again
    changed = planned(write_model(tmp_path, "option.max_rolling_batch_size=9"))
    for method, name in (("create_model", "ModelName"), ("create_endpoint_config", "EndpointConfigName")):
        before, after = parameters(first, method)[name], parameters(changed, method)[name]
        assert before != after
        assert len(before) <= 63
        assert before.startswith("chat-")
    assert parameters(changed, "create_endpoint")["EndpointName"] == "chat"


def test_resource_names_change_with_a_secret_without_revealing_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    names = []
    for value in ("hf_old", "hf_new", "hf_new"):
        deployment = planned(folder, environment=from_command_line(["HF_TOKEN"], {"HF_TOKEN": value}))
        assert value not in str(deployment)
        model, config = (parameters(deployment, f"create_{kind}") for kind in ("model", "endpoint_config"))
        names.append((model["ModelName"], config["EndpointConfigName"]))
    assert names[1] == names[2]
    assert set(names[0]).isdisjoint(names[1])


@pytest.mark.parametrize(
    ("count", "weight", "excluded", "retained"),
    [
        (None, None, [], ["InitialInstanceCount", "InitialVariantWeight"]),
        (2, None, ["DesiredInstanceCount"], ["InitialVariantWeight"]),
        (None, 1.0, ["DesiredWeight"], ["InitialInstanceCount"]),
        (2, 1.0, None, []),
    ],
)
def test_an_update_retains_the_counts_and_weights_that_are_not_given(
    count: int | None, weight: float | None, excluded: list[str] | None, retained: list[str], tmp_path: Path
) -> None:
    variants = [VariantSpec("A", write_model(tmp_path), weight)]
    update = plan(spec(count=count), variants, update=True)
    call = parameters(update, "update_endpoint")
    assert call.get("RetainAllVariantProperties", False) == (excluded is not None)
    kinds = [one["VariantPropertyType"] for one in call.get("ExcludeRetainedVariantProperties", ())]
    assert kinds == (excluded or [])
    assert update.retained_fields == retained
    creation = parameters(plan(spec(count=count), variants), "create_endpoint")
    assert creation.keys() == {"EndpointName", "EndpointConfigName"}


def test_the_waiter_waits_longer_than_all_timeouts(tmp_path: Path) -> None:
    deployment = planned(write_model(tmp_path))
    row = variant_of(deployment)
    limits = row["ModelDataDownloadTimeoutInSeconds"] + row["ContainerStartupHealthCheckTimeoutInSeconds"]
    assert deployment.waiter["Delay"] * deployment.waiter["MaxAttempts"] > limits


def test_errors_in_serving_properties_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"option\.paged_attention"):
        planned(write_properties(tmp_path, "option.paged_atention=true"))


@pytest.mark.parametrize("model_data", ["s3://my-bucket/llama/", "file://{model}/"])
@pytest.mark.parametrize(
    ("line", "instance", "reason"),
    [
        ("option.tensor_parallel_degree=4", "ml.g5.xlarge", "needs 4 GPUs; ml.g5.xlarge has 1"),
        ("option.quantize=int8", "ml.g5.xlarge", "option.quantize=int8"),
        ("option.kv_cache_gb=500", "ml.c7i.xlarge", "option.kv_cache_gb=500 exceeds the free memory"),
        ("option.max_model_len=16384", "ml.g5.xlarge", "16384"),
    ],
)
def test_what_the_instance_cannot_serve_is_rejected(
    line: str, instance: str, reason: str, model_data: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", num_bytes=GB)
    folder = model if model_data.startswith("s3") else tmp_path / "config"
    write_properties(folder, line)
    target = hardware.instance(instance)
    with pytest.raises(CannotDeploy, match=f"variant AllTraffic: {instance} cannot serve .*{reason}"):
        planned(folder, instance=target, model_data=model_data.format(model=model))


def test_a_model_that_is_not_on_this_disk_is_checked_as_far_as_possible(tmp_path: Path) -> None:
    notes = planned(write_properties(tmp_path, "engine=MPI")).notes
    assert any("whether ml.g5.48xlarge can serve the model is unknown; `lmi check`" in note for note in notes)
    with pytest.raises(CannotDeploy, match="needs 16 GPUs"):
        planned(write_properties(tmp_path, "option.tensor_parallel_degree=16"))


def test_an_instance_of_unknown_size_is_noted(tmp_path: Path) -> None:
    notes = planned(write_model(tmp_path, num_bytes=GB), instance=hardware.instance("ml.t2.medium")).notes
    assert any("not checked for the instance: " in note for note in notes)


def test_the_modules_and_permissions_of_a_handler_are_checked(tmp_path: Path) -> None:
    folder = write_properties(tmp_path, "engine=Python")
    (folder / "model.py").write_text("import no_such\ndef handle(inputs): ...\n")
    notes = planned(folder).notes
    assert any("the module no_such is missing" in note for note in notes), "the image may have it"
    (folder / "requirements.txt").write_text("no-such\n")
    with pytest.raises(CannotDeploy, match="LMI_ALLOW_REMOTE_CODE=true"):
        planned(folder)
    planned(folder, environment={"LMI_ALLOW_REMOTE_CODE": "true"})
