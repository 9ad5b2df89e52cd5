"""The control plane with the `sagemaker` client of boto3."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from tests.container.endpoint.fake_containers import FakeLab
from tests.support.endpoints import ENDPOINT

SOURCE = {"S3Uri": "s3://bucket/model/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def error_of(call: Any, **params: Any) -> tuple[str, str]:
    """Return the code and message of the error that a call raises."""
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_the_life_cycle_of_an_endpoint(platform: FakeLab) -> None:
    api = platform.sagemaker
    platform.deploy(A={"InitialVariantWeight": 9, "InitialInstanceCount": 2}, B={"InitialVariantWeight": 1})
    api.get_waiter("endpoint_in_service").wait(EndpointName=ENDPOINT, WaiterConfig={"Delay": 1})
    described = api.describe_endpoint(EndpointName=ENDPOINT)
    assert described["EndpointArn"] == f"arn:aws:sagemaker:local:000000000000:endpoint/{ENDPOINT}"
    assert described["EndpointConfigName"] == "one"
    assert [
        (row["VariantName"], row["CurrentWeight"], row["CurrentInstanceCount"])
        for row in described["ProductionVariants"]
    ] == [("A", 9.0, 2), ("B", 1.0, 1)]
    assert api.describe_model(ModelName="one-A")["PrimaryContainer"]["Image"] == "lmi"
    assert len(api.describe_endpoint_config(EndpointConfigName="one")["ProductionVariants"]) == 2
    assert [row["EndpointStatus"] for row in api.list_endpoints()["Endpoints"]] == ["InService"]
    api.delete_endpoint(EndpointName=ENDPOINT)
    api.get_waiter("endpoint_deleted").wait(EndpointName=ENDPOINT, WaiterConfig={"Delay": 1})
    assert all(container.ended for container in platform.containers)
    assert len(platform.containers) == 3
    api.delete_endpoint_config(EndpointConfigName="one")
    api.delete_model(ModelName="one-A")
    assert [row["ModelName"] for row in api.list_models()["Models"]] == ["one-B"]
    code, message = error_of(api.describe_endpoint, EndpointName=ENDPOINT)
    assert (code, message) == (
        "ValidationException",
        f'Could not find endpoint "arn:aws:sagemaker:local:000000000000:endpoint/{ENDPOINT}".',
    )


def test_a_container_that_does_not_start_fails_the_endpoint(platform: FakeLab) -> None:
    reason = platform.deploy(A={"environment": {"UNHEALTHY": "option.dtype: got fp17; allowed: fp16"}})[
        "FailureReason"
    ]
    assert "production variant A did not pass the ping health check" in reason
    assert "option.dtype: got fp17" in reason
    code, message = error_of(platform.runtime.invoke_endpoint, EndpointName=ENDPOINT, Body=b"")
    assert (code, message) == ("ValidationError", "The endpoint is not in service.")
    platform.sagemaker.delete_endpoint(EndpointName=ENDPOINT)


def test_names_are_unique_and_references_exist(platform: FakeLab) -> None:
    api = platform.sagemaker
    platform.deploy()
    assert (
        "already existing model"
        in error_of(api.create_model, ModelName="one-AllTraffic", PrimaryContainer={})[1]
    )
    params = {"EndpointName": ENDPOINT, "EndpointConfigName": "one"}
    assert "already existing endpoint" in error_of(api.create_endpoint, **params)[1]
    params = {"EndpointName": "other", "EndpointConfigName": "none"}
    assert "Could not find endpoint configuration" in error_of(api.create_endpoint, **params)[1]
    variant = {"VariantName": "A", "ModelName": "none"}
    params = {"EndpointConfigName": "two", "ProductionVariants": [variant]}
    assert "Could not find model" in error_of(api.create_endpoint_config, **params)[1]


def test_names_that_differ_only_in_case_are_the_same_to_create_and_different_to_describe(
    platform: FakeLab,
) -> None:
    """ARNs are in lower case."""
    api = platform.sagemaker
    model = api.create_model(ModelName="Chat", PrimaryContainer={})["ModelArn"]
    code, message = error_of(api.create_model, ModelName="chat", PrimaryContainer={})
    assert (code, message) == ("ValidationException", f'Cannot create already existing model "{model}".')
    assert api.describe_model(ModelName="Chat")["ModelName"] == "Chat"
    assert "Could not find model" in error_of(api.describe_model, ModelName="chat")[1]


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            {"ModelDataUrl": "s3://bucket/model.tar.gz", "ModelDataSource": {"S3DataSource": SOURCE}},
            "PrimaryContainer.ModelDataUrl: not allowed beside ModelDataSource",
        ),
        ({"Mode": "MultiModel"}, "PrimaryContainer.Mode: not supported (got MultiModel)"),
        (
            {"ModelDataSource": {"S3DataSource": {**SOURCE, "CompressionType": "Gzip"}}},
            "CompressionType: not supported with S3DataType=S3Prefix (got Gzip); allowed: None",
        ),
        (
            {"ModelDataSource": {"S3DataSource": {**SOURCE, "S3DataType": "S3Object"}}},
            "CompressionType: not supported with S3DataType=S3Object (got None); allowed: Gzip",
        ),
        (
            {"ModelDataSource": {"S3DataSource": {**SOURCE, "S3Uri": "s3://bucket/model"}}},
            "PrimaryContainer.ModelDataSource.S3DataSource.S3Uri: a key prefix must end with a slash"
            " (got s3://bucket/model)",
        ),
        ({"ModelDataSource": {"S3DataSource": {**SOURCE, "S3DataType": "S3Prefx"}}}, "[S3Prefix, ...]"),
        ({"Environment": {"A": "b" * 1025}}, "at most 1024"),
        ({"Environment": {"A-B": "c"}}, "regular expression"),
    ],
)
def test_an_unsupported_model_is_rejected(container: dict[str, Any], words: str, platform: FakeLab) -> None:
    code, message = error_of(platform.sagemaker.create_model, ModelName="m", PrimaryContainer=container)
    assert code == "ValidationException"
    assert words in message


@pytest.mark.parametrize(
    ("environment", "limit"),
    [
        ({"TOKEN": "hf_abc" * 200}, "at most 1024"),
        ({f"N{number}": "hf_abc" for number in range(101)}, "at most 100"),
    ],
)
def test_a_rejected_environment_is_not_quoted(
    environment: dict[str, str], limit: str, platform: FakeLab
) -> None:
    container = {"Environment": environment}
    message = error_of(platform.sagemaker.create_model, ModelName="m", PrimaryContainer=container)[1]
    assert "Environment" in message
    assert limit in message
    assert "hf_abc" not in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"InstanceType": "ml.g5.12xlage"}, "ml.g5.12xlarge"),
        ({"VariantName": "no spaces"}, "regular expression"),
        ({"ContainerStartupHealthCheckTimeoutInSeconds": 3601}, "at most 3600"),
        (
            {"ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 1}},
            "ServerlessConfig: not supported",
        ),
    ],
)
def test_an_invalid_variant_is_rejected(fields: dict[str, Any], words: str, platform: FakeLab) -> None:
    platform.configure("one", A={})
    variant = {"VariantName": "A", "ModelName": "one-A", **fields}
    code, message = error_of(
        platform.sagemaker.create_endpoint_config, EndpointConfigName="two", ProductionVariants=[variant]
    )
    assert code == "ValidationException"
    assert words in message


def test_a_variant_without_a_model_is_an_inference_component(platform: FakeLab) -> None:
    code, message = error_of(
        platform.sagemaker.create_endpoint_config,
        EndpointConfigName="one",
        ProductionVariants=[{"VariantName": "A", "InitialInstanceCount": 1, "InstanceType": "ml.g5.xlarge"}],
    )
    assert code == "ValidationException"
    reason = (
        "ProductionVariants[0].ModelName: missing; inference components are not supported by lmi endpoint"
    )
    assert reason in message


def test_a_model_may_list_its_only_container(platform: FakeLab) -> None:
    api = platform.sagemaker
    containers = [{"Image": "lmi", "Environment": {"OPTION_DTYPE": "fp32"}}]
    api.create_model(ModelName="m", Containers=containers)
    assert api.describe_model(ModelName="m")["Containers"] == containers
    api.create_endpoint_config(
        EndpointConfigName="one",
        ProductionVariants=[{"VariantName": "A", "ModelName": "m", "InitialInstanceCount": 1}],
    )
    api.create_endpoint(EndpointName=ENDPOINT, EndpointConfigName="one")
    platform.wait("InService")
    assert platform.containers[0].environment == {"OPTION_DTYPE": "fp32"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "PrimaryContainer: required, or one container in Containers"),
        ({"PrimaryContainer": {}, "Containers": [{}]}, "allowed: only one of them"),
        (
            {"Containers": [{}, {}]},
            "Containers: inference pipelines are not supported by lmi endpoint (got 2",
        ),
        ({"Containers": [{"Mode": "MultiModel"}]}, "Containers[0].Mode: not supported (got MultiModel)"),
    ],
)
def test_a_model_has_one_container(fields: dict[str, Any], words: str, platform: FakeLab) -> None:
    assert words in error_of(platform.sagemaker.create_model, ModelName="m", **fields)[1]


def test_tags_are_listed_added_and_deleted_by_arn(platform: FakeLab) -> None:
    api = platform.sagemaker
    tags = [{"Key": "team", "Value": "a"}, {"Key": "cost", "Value": "1"}]
    model = api.create_model(ModelName="m", PrimaryContainer={}, Tags=tags)["ModelArn"]
    assert api.list_tags(ResourceArn=model)["Tags"] == tags
    added = api.add_tags(ResourceArn=model, Tags=[{"Key": "team", "Value": "b"}])
    assert added["Tags"] == [{"Key": "team", "Value": "b"}, tags[1]]
    api.delete_tags(ResourceArn=model, TagKeys=["cost", "none"])
    assert api.list_tags(ResourceArn=model)["Tags"] == [{"Key": "team", "Value": "b"}]
    platform.deploy()
    endpoint = api.describe_endpoint(EndpointName=ENDPOINT)["EndpointArn"]
    assert api.list_tags(ResourceArn=endpoint)["Tags"] == []
    api.delete_model(ModelName="m")
    assert f'could not find "{model}"' in error_of(api.list_tags, ResourceArn=model)[1]
    api.create_model(ModelName="m", PrimaryContainer={})
    assert api.list_tags(ResourceArn=model)["Tags"] == []


def test_lists_are_paginated_and_filtered(platform: FakeLab) -> None:
    api = platform.sagemaker
    for number in range(12):
        api.create_model(ModelName=f"m{number:02}", PrimaryContainer={"Image": "lmi"})
    pages = list(api.get_paginator("list_models").paginate(SortBy="Name"))
    assert [len(page["Models"]) for page in pages] == [10, 2]
    names = [row["ModelName"] for page in pages for row in page["Models"]]
    assert names == [f"m{number:02}" for number in range(12)]
    assert len(api.list_models(NameContains="m1")["Models"]) == 2
    assert api.list_models(MaxResults=1)["Models"][0]["ModelName"] == "m11"


@pytest.mark.parametrize("field", ["CreationTime", "LastModifiedTime"])
def test_lists_are_filtered_by_time(field: str, platform: FakeLab) -> None:
    platform.deploy(A={})
    past, future = datetime(2001, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)

    def listed(**limits: datetime) -> int:
        params = {f"{field}{name}": limit for name, limit in limits.items()}
        return len(platform.sagemaker.list_endpoints(**params)["Endpoints"])

    assert listed(After=past, Before=future) == 1
    assert listed(After=future) == 0
    assert listed(Before=past) == 0
    if field == "CreationTime":
        assert platform.sagemaker.list_models(CreationTimeAfter=future)["Models"] == []


def test_weights_and_capacities_change_without_a_new_fleet(platform: FakeLab) -> None:
    platform.deploy(A={"InitialInstanceCount": 2}, B={})
    before = list(platform.containers)
    platform.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=ENDPOINT,
        DesiredWeightsAndCapacities=[
            {"VariantName": "A", "DesiredWeight": 0.0, "DesiredInstanceCount": 1},
            {"VariantName": "B", "DesiredInstanceCount": 3},
        ],
    )
    rows = platform.wait("InService")["ProductionVariants"]
    assert [(row["CurrentWeight"], row["CurrentInstanceCount"]) for row in rows] == [(0.0, 1), (1.0, 3)]
    assert [container.ended for container in before] == [False, True, False]
    replies = [platform.invoke() for _ in range(20)]
    assert {reply["InvokedProductionVariant"] for reply in replies} == {"B"}


def test_an_unsupported_operation_is_an_error(platform: FakeLab) -> None:
    code, message = error_of(platform.sagemaker.list_training_jobs)
    assert code == "UnknownOperationException"
    assert message == "ListTrainingJobs: not supported by lmi endpoint"


def test_nothing_is_created_during_the_shutdown(platform: FakeLab) -> None:
    platform.configure("one", A={})
    platform.platform.close()
    params = {"EndpointName": ENDPOINT, "EndpointConfigName": "one"}
    assert error_of(platform.sagemaker.create_endpoint, **params)[1] == "lmi endpoint is stopping"
    assert platform.containers == []


def test_requests_with_a_foreign_host_header_are_rejected(platform: FakeLab) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(platform.url).port or 0, timeout=200)
    headers = {"Host": "evil.example:9000", "X-Amz-Target": "SageMaker.ListModels"}
    connection.request("POST", "/", b"{}", headers)
    response = connection.getresponse()
    assert response.status == 400
    assert b"not a name of this machine" in response.read()
    connection.close()


@pytest.mark.parametrize("body", [b"{", b"[" * 200_000], ids=["incomplete", "deeply nested"])
def test_a_body_that_is_not_json_is_rejected(body: bytes, platform: FakeLab) -> None:
    request = Request(platform.url, body, {"X-Amz-Target": "SageMaker.ListModels"})  # noqa: S310 - on loopback
    with pytest.raises(HTTPError) as caught:
        urlopen(request)  # noqa: S310
    with closing(caught.value):
        assert json.load(caught.value)["__type"] == "SerializationException"
