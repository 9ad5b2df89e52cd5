"""`lmi deploy`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from botocore.exceptions import BotoCoreError, NoRegionError

from container.deploy import CannotDeploy, differences, variables
from container.deploy.deployment import EndpointSpec, VariantSpec, plan
from container.deploy.execute import execute
from container.deploy.script import as_script
from container.explain import hardware
from container.explain.hardware import Instance, NoSuchHardwareError
from container.run import launch
from lmi_server.properties.problems import PropertiesError

_ONLY_VARIANT = "AllTraffic"
_VARIANT = re.compile(r"(?P<name>[^=]+)=(?P<path>.+?)(?::(?P<weight>\d+(\.\d+)?))?")
_CPU_ONLY = re.compile(r"ml\.[cmrt]\d\w*\.\w+")
_CPU_NETWORK = 1.25e9
"""Network bandwidth in bytes per second. Instances without accelerators have at least 10 Gbit/s."""


@click.command()
@click.argument("path", required=False)
@click.option("--name", required=True, help="Name of the endpoint.")
@click.option("--instance", "instance_type", required=True, help="Instance type, such as ml.g5.12xlarge.")
@click.option("--image", required=True, help="URI of the container image in ECR.")
@click.option("--role", required=True, help="ARN of the execution role.")
@click.option(
    "--model-data",
    help="S3 prefix that SageMaker copies to /opt/ml/model. Without it, the container downloads option.model_id.",
)
@click.option(
    "--variant",
    "variant_texts",
    multiple=True,
    metavar="NAME=PATH[:WEIGHT]",
    help="Production variant, instead of PATH; repeatable. Requests are distributed in proportion to the weights.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of instances per variant.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable for the container; repeatable. NAME alone takes the value from this shell (secrets).",
)
@click.option("--update", is_flag=True, help="Update an existing endpoint.")
@click.option("--dry-run", is_flag=True, help="Print the calls as a Python program instead of making them.")
@click.option(
    "--diff",
    is_flag=True,
    help="Print what would change in the running endpoint. Exit code 1 if anything differs.",
)
def deploy(
    path: str | None,
    name: str,
    instance_type: str,
    image: str,
    role: str,
    model_data: str | None,
    variant_texts: tuple[str, ...],
    count: int,
    env: tuple[str, ...],
    update: bool,
    dry_run: bool,
    diff: bool,
) -> None:
    """Create a SageMaker endpoint that serves the configuration of PATH.

    PATH is a serving.properties file or a folder that contains one. Its settings become environment variables of the
    container. Timeouts are derived from the predicted loading time.
    """
    environ = launch.environment()
    if dry_run and diff:
        raise click.UsageError("--dry-run and --diff cannot be combined.")
    variants = _variants(path, variant_texts)
    try:
        others = variables.from_command_line(env, environ)
        spec = EndpointSpec(name, image, role, find_instance(instance_type), count, model_data, others)
        deployment = plan(spec, variants, update)
        if dry_run:
            click.echo(as_script(deployment), nl=False)
            return
        sagemaker = _client(environ)
        if diff:
            before = differences.running_values(name, sagemaker)
            lines = list(differences.differences(before, differences.planned_values(deployment, environ)))
            click.echo("\n".join(lines) or "no differences")
            sys.exit(1 if lines else 0)
        for note in deployment.notes:
            click.echo(f"note: {note}")
        execute(deployment, sagemaker, environ, click.echo)
    except (PropertiesError, CannotDeploy, NoSuchHardwareError) as error:
        raise click.ClickException(str(error)) from error


def _variants(path: str | None, texts: Sequence[str]) -> list[VariantSpec]:
    """Return the production variants that the command line names. Raises: click.UsageError."""
    if (path is None) == (not texts):
        raise click.UsageError("Give either PATH or --variant.")
    if path is not None:
        return [VariantSpec(_ONLY_VARIANT, Path(path))]
    variants = []
    for text in texts:
        match = _VARIANT.fullmatch(text)
        if match is None:
            raise click.UsageError(
                f"--variant: not valid (got {text!r}); allowed: NAME=PATH, NAME=PATH:WEIGHT"
            )
        variants.append(VariantSpec(match["name"], Path(match["path"]), float(match["weight"] or 1)))
    return variants


def find_instance(name: str) -> Instance:
    """Return an instance by its name. The table lacks instances without accelerators. Raises: NoSuchHardwareError."""
    if _CPU_ONLY.fullmatch(name) and not hardware.instance_obstacle(name):
        return Instance(name, "CPU", 1, 0, 0, 0, _CPU_NETWORK, "")
    return hardware.instance(name)


def _client(environ: Mapping[str, str]) -> Any:
    """Return boto3's SageMaker client. boto3 is imported here, because a dry run needs none. Raises: CannotDeploy."""
    import boto3

    try:
        # boto3 itself reads only AWS_DEFAULT_REGION.
        return boto3.client("sagemaker", region_name=environ.get("AWS_REGION") or None)
    except NoRegionError as error:
        raise CannotDeploy(
            "no AWS region: set AWS_REGION or AWS_DEFAULT_REGION, or choose a profile that has one (AWS_PROFILE)"
        ) from error
    except BotoCoreError as error:
        raise CannotDeploy(str(error)) from error
