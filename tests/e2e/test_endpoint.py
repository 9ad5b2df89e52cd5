"""`lmi endpoint` from the command line: two variants of a handler, boto3, an update, and the final report.

`make verify` does the same with a language model, under load.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.endpoint_process import running_endpoint
from tests.support.endpoints import client
from tests.support.several_models import save_handlers

pytestmark = pytest.mark.e2e


def model_tables(name: str, folder: Path, **environment: str) -> str:
    """Return the TOML tables of a model."""
    variables = ", ".join(f'{key} = "{value}"' for key, value in environment.items())
    return f"""
[[models]]
ModelName = "{name}"
[models.PrimaryContainer]
Environment = {{{variables}}}
[models.PrimaryContainer.ModelDataSource.S3DataSource]
S3Uri = "file://{folder}"
S3DataType = "S3Prefix"
CompressionType = "None"
"""


def config_tables(name: str, **models: str) -> str:
    """Return the TOML tables of an endpoint configuration. `models` maps variants to models."""
    variants = "".join(
        f'[[endpoint_configs.ProductionVariants]]\nVariantName = "{variant}"\nModelName = "{model}"\n'
        "ContainerStartupHealthCheckTimeoutInSeconds = 240\n"
        for variant, model in models.items()
    )
    return f'[[endpoint_configs]]\nEndpointConfigName = "{name}"\n{variants}'


def test_two_variants_of_a_model_are_served(tmp_path: Path) -> None:
    folder = save_handlers(tmp_path, "a")["a"]
    (folder / "serving.properties").write_text("engine=Python\n")
    file = tmp_path / "endpoint.toml"
    file.write_text(
        model_tables("from-1000", folder, OPTION_FIRST_ID="1000")
        + model_tables("from-2000", folder, OPTION_FIRST_ID="2000")
        + model_tables("bad", folder)
        + config_tables("ab", A="from-1000", B="from-2000")
        + config_tables("bad", A="bad")
        + '[[endpoints]]\nEndpointName = "my-endpoint"\nEndpointConfigName = "ab"\n'
    )
    with running_endpoint(tmp_path / "state", str(file), until="InService") as endpoint:
        check_variants_and_update(endpoint.url)
    output = "".join(endpoint.output)
    assert endpoint.exit_code == 0, output
    assert "A (ab)" in output
    assert "my-endpoint, latency p50: " in output


def check_variants_and_update(url: str) -> None:
    """Invoke both variants, stream, and check that a bad update is rolled back with the server's own error."""
    with closing(client("sagemaker-runtime", url)) as runtime, closing(client("sagemaker", url)) as sagemaker:
        fields = {"EndpointName": "my-endpoint", "Body": b"{}", "ContentType": "application/json"}
        for variant, first in (("A", 1000), ("B", 2000)):
            reply = runtime.invoke_endpoint(**fields, TargetVariant=variant)
            assert json.load(reply["Body"])["details"]["tokens"][0]["id"] == first
            assert reply["InvokedProductionVariant"] == variant
        fields["TargetVariant"] = "A"
        reply = runtime.invoke_endpoint_with_response_stream(**fields | {"Body": b'{"stream": true}'})
        with closing(reply["Body"]) as events:
            text = b"".join(event["PayloadPart"]["Bytes"] for event in events)
        assert len(text.splitlines()) == 4
        sagemaker.update_endpoint(EndpointName="my-endpoint", EndpointConfigName="bad")
        described = {"EndpointStatus": "Updating"}
        while described["EndpointStatus"] != "InService":
            described = sagemaker.describe_endpoint(EndpointName="my-endpoint")
        assert described["EndpointConfigName"] == "ab"
        assert "first_id" in described["FailureReason"]
        reply = runtime.invoke_endpoint(**fields | {"TargetVariant": "B"})
        assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200
