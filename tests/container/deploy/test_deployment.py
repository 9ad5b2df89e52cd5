"""The SageMaker API calls of a deployment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from container.deploy import CannotDeploy
from container.deploy.deployment import VariantSpec, plan
from container.deploy.variables import ShellSecret, from_command_line
from container.explain import hardware
from lmi_server.properties.problems import PropertiesError
from tests.container.deploy.endpoints import (
    CPU,
    GB,
    MODEL_DATA,
    complaints,
    parameters,
    planned,
    service_model,
    spec,
    variables_of,
    variant_of,
    write_model,
    write_properties,
)
from tests.support.paths import REPO_ROOT


def test_botocore_accepts_every_call(tmp_path: Path) -> None:
    service = service_model()
    folder = write_model(tmp_path / "a", "engine=MPI", "option.max_rolling_batch_size=64")
    for instance in (spec().instance, CPU):
        deployment = planned(folder, instance=instance, environment={"A": "b"})
        assert [complaints(call, service) for call in deployment.calls] == [""] * 3


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


def test_without_a_prefix_the_container_downloads_the_model(tmp_path: Path) -> None:
    folder = write_properties(tmp_path, "option.model_id=HuggingFaceTB/SmolLM2-135M-Instruct")
    deployment = planned(folder, model_data=None)
    assert variables_of(deployment)["OPTION_MODEL_ID"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "ModelDataSource" not in parameters(deployment, "create_model")["PrimaryContainer"]
    assert "ModelDataDownloadTimeoutInSeconds" not in variant_of(deployment)


def test_a_local_model_needs_a_prefix(tmp_path: Path) -> None:
    with pytest.raises(CannotDeploy, match=rf"cannot read the model folder {tmp_path}; .*--model-data"):
        planned(write_model(tmp_path, "engine=MPI"), model_data=None)


def test_a_handler_needs_a_prefix(tmp_path: Path) -> None:
    write_properties(tmp_path, "engine=Python")
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return inputs\n")
    with pytest.raises(CannotDeploy, match=r"Python files of a handler; .*--model-data"):
        planned(tmp_path, model_data=None)


def test_gpu_instances_get_the_ami_with_the_required_driver(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI")
    assert variant_of(planned(folder))["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    assert "InferenceAmiVersion" not in variant_of(planned(folder, instance=CPU))


def test_the_ami_has_the_cuda_version_of_the_dockerfile() -> None:
    base = re.search(r"nvidia/cuda:(\d+\.\d+)", (REPO_ROOT / "Dockerfile").read_text())
    assert base is not None
    shape = service_model().shape_for("ProductionVariant").members["InferenceAmiVersion"]
    assert "al2023-ami-sagemaker-inference-gpu-4-1" in shape.enum
    assert f"CUDA version: {base[1]}" in re.sub(r"<[^>]*>", "", shape.documentation).split("gpu-4-1")[1]


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        ("ml.p3.2xlarge", "the CUDA image is built with CUDA 13, which does not run on V100"),
        ("ml.inf2.xlarge", "this server runs on CPUs and NVIDIA GPUs, not on Inferentia2"),
    ],
)
def test_unsupported_instances_are_rejected(instance: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CannotDeploy, match=f"--instance {instance}: {reason}"):
        planned(write_model(tmp_path), instance=hardware.instance(instance))


def test_instances_without_local_storage_get_a_volume_for_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "engine=MPI", num_bytes=100 * GB)
    assert "VolumeSizeInGB" not in variant_of(planned(folder))
    assert 100 < variant_of(planned(folder, instance=CPU))["VolumeSizeInGB"] <= 512


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


def test_variants_have_their_own_settings_and_weights(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / name, f"option.max_rolling_batch_size={name}") for name in ("8", "64")]
    variants = [VariantSpec("A", paths[0], 9), VariantSpec("B", paths[1])]
    deployment = plan(spec(), variants)
    models = [call.parameters for call in deployment.calls if call.method == "create_model"]
    rows = parameters(deployment, "create_endpoint_config")["ProductionVariants"]
    assert [row["ModelName"] for row in rows] == [model["ModelName"] for model in models]
    assert [(row["VariantName"], row["InitialVariantWeight"]) for row in rows] == [("A", 9), ("B", 1)]
    batches = [m["PrimaryContainer"]["Environment"]["OPTION_MAX_ROLLING_BATCH_SIZE"] for m in models]
    assert batches == ["8", "64"]


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


def test_an_update_calls_update_endpoint(tmp_path: Path) -> None:
    deployment = plan(spec(), [VariantSpec("AllTraffic", write_model(tmp_path))], update=True)
    assert [call.method for call in deployment.calls][-1] == "update_endpoint"


def test_deployments_do_not_contain_secrets(tmp_path: Path) -> None:
    deployment = planned(write_model(tmp_path), environment={"HF_TOKEN": ShellSecret("HF_TOKEN")})
    assert variables_of(deployment)["HF_TOKEN"] == ShellSecret("HF_TOKEN")


def test_the_waiter_waits_longer_than_all_timeouts(tmp_path: Path) -> None:
    deployment = planned(write_model(tmp_path))
    row = variant_of(deployment)
    limits = row["ModelDataDownloadTimeoutInSeconds"] + row["ContainerStartupHealthCheckTimeoutInSeconds"]
    assert deployment.waiter["Delay"] * deployment.waiter["MaxAttempts"] > limits


def test_errors_in_serving_properties_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"option\.paged_attention"):
        planned(write_properties(tmp_path, "option.paged_atention=true"))


def test_a_prefix_must_end_in_a_slash(tmp_path: Path) -> None:
    with pytest.raises(CannotDeploy, match="with a trailing slash"):
        planned(write_model(tmp_path), model_data="s3://bucket/prefix")


def test_long_names_and_repeated_variants_are_rejected(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(CannotDeploy, match="at most 63 characters"):
        planned(folder, name="n" * 60)
    with pytest.raises(CannotDeploy, match="A is repeated"):
        plan(spec(), [VariantSpec("A", folder), VariantSpec("A", folder)])
