"""Differences between a running endpoint and a deployment, as `lmi deploy --diff` prints them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.deploy import CannotDeploy, differences
from container.deploy.deployment import Deployment, VariantSpec, plan
from container.deploy.variables import ShellSecret, with_secrets
from tests.container.deploy.endpoints import CPU, FakeClient, planned, spec, write_model

SHELL = {"HF_TOKEN": "hf_old"}


def endpoint_of(deployment: Deployment, weight: float = 1.0) -> Any:
    """Return a fake SageMaker client on which this deployment runs. The platform adds its own fields."""
    calls = [(call.method, with_secrets(call.parameters, SHELL)) for call in deployment.calls]
    models = {one["ModelName"]: one for method, one in calls if method == "create_model"}
    config = next(one for method, one in calls if method == "create_endpoint_config")
    for model in models.values():
        model["PrimaryContainer"]["Mode"] = "SingleModel"
    summaries = [
        {"VariantName": row["VariantName"], "CurrentWeight": weight, "CurrentInstanceCount": 1}
        for row in config["ProductionVariants"]
    ]
    description = {"EndpointConfigName": config["EndpointConfigName"], "ProductionVariants": summaries}
    return SimpleNamespace(
        describe_endpoint=lambda **_: description,
        describe_endpoint_config=lambda **_: config,
        describe_model=lambda **names: models[names["ModelName"]],
    )


def lines(before: Any, after: Deployment, shell: dict[str, str] = SHELL) -> list[str]:
    return list(
        differences.differences(
            differences.running_values("chat", before), differences.planned_values(after, shell)
        )
    )


def test_options_are_compared_by_their_effective_values(tmp_path: Path) -> None:
    before = planned(write_model(tmp_path / "a", "option.dtype=float16"))
    after = planned(write_model(tmp_path / "b", "option.dtype=fp16", "option.max_rolling_batch_size=64"))
    assert lines(endpoint_of(before), after) == [
        "variant AllTraffic",
        "  option.max_rolling_batch_size: 32 -> 64",
    ]


def test_an_option_without_a_value_is_shown_as_none(tmp_path: Path) -> None:
    before, after = (
        planned(write_model(tmp_path / "a")),
        planned(write_model(tmp_path / "b", "option.max_queued_tokens=9")),
    )
    assert lines(endpoint_of(before), after)[1:] == ["  option.max_queued_tokens: (none) -> 9"]


def test_variant_and_container_fields_are_compared(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    changes = lines(endpoint_of(planned(folder), weight=0.5), planned(folder, instance=CPU, image="other:1"))
    for line in (
        "  InstanceType: ml.g5.48xlarge -> ml.c7i.4xlarge",
        "  InferenceAmiVersion: al2023-ami-sagemaker-inference-gpu-4-1 -> (not set)",
        "  InitialVariantWeight: 0.5 -> 1",
    ):
        assert line in changes
    assert any(line.startswith("  Image: ") and line.endswith("-> other:1") for line in changes)


def test_secrets_are_compared_but_not_shown(tmp_path: Path) -> None:
    deployment = planned(write_model(tmp_path), environment={"HF_TOKEN": ShellSecret("HF_TOKEN")})
    assert lines(endpoint_of(deployment), deployment) == []
    changes = "\n".join(lines(endpoint_of(deployment), deployment, {"HF_TOKEN": "hf_new"}))
    assert "HF_TOKEN" in changes
    assert "hf_old" not in changes
    assert "hf_new" not in changes


def test_added_and_removed_variants(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    after = plan(spec(), [VariantSpec("B", folder)])
    assert lines(endpoint_of(planned(folder)), after) == [
        "variant AllTraffic: running, will be removed",
        "variant B: will be added",
    ]


def test_an_endpoint_with_inference_components_is_an_error(tmp_path: Path) -> None:
    client = endpoint_of(planned(write_model(tmp_path)))
    del client.describe_endpoint_config()["ProductionVariants"][0]["ModelName"]
    reason = "chat: variant AllTraffic has no model: inference components are not supported"
    with pytest.raises(CannotDeploy, match=reason):
        differences.running_values("chat", client)


def test_a_missing_endpoint_is_an_error() -> None:
    client = FakeClient(describe_endpoint='Could not find endpoint "chat".')
    with pytest.raises(CannotDeploy, match="Could not find endpoint"):
        differences.running_values("chat", client)
