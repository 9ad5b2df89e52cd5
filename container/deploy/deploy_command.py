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
from container.failures import reported
from container.progress import view_for
from container.run import launch

_ONLY_VARIANT = "AllTraffic"
_VARIANT = re.compile(r"(?P<name>[^=]+)=(?P<path>.+?)(?::(?P<weight>\d+(\.\d+)?))?")
_REGISTRY = re.compile(r"\d+\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com.*")


@click.command()
@click.argument("path", required=False)
@click.option("--name", required=True, help="Name of the endpoint.")
@click.option("--instance", "instance_type", required=True, help="Instance type, such as ml.g5.12xlarge.")
@click.option("--image", required=True, help="URI of the container image in ECR.")
@click.option("--role", required=True, help="ARN of the execution role.")
@click.option(
    "--model-data",
    help="S3 prefix that SageMaker copies to /opt/ml/model, or file:///path/ for `lmi endpoint`. Without it, the"
    " container downloads option.model_id.",
)
@click.option(
    "--variant",
    "variant_texts",
    multiple=True,
    metavar="NAME=PATH[:WEIGHT]",
    help="Production variant, instead of PATH; repeatable. Requests are distributed in proportion to the weights."
    " Without any weight, all are 1; with --update, the present weights are kept.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    help="Number of instances per variant. Default: 1; with --update, the present number.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable for the container; repeatable. NAME alone takes the value from this shell (secrets)."
    " Settings of the serving.properties take precedence.",
)
@click.option("--update", is_flag=True, help="Update an existing endpoint.")
@click.option("--dry-run", is_flag=True, help="Print the calls as a Python program instead of making them.")
@click.option(
    "--diff",
    is_flag=True,
    help="Print what --update would change in the endpoint. Exit code 1 if anything differs, 2 after an error.",
)
def deploy(
    path: str | None,
    name: str,
    instance_type: str,
    image: str,
    role: str,
    model_data: str | None,
    variant_texts: tuple[str, ...],
    count: int | None,
    env: tuple[str, ...],
    update: bool,
    dry_run: bool,
    diff: bool,
) -> None:
    """Create a SageMaker endpoint that serves the configuration of PATH.

    PATH is a serving.properties file or a folder that contains one. Its settings become environment variables of the
    container. Timeouts are derived from the predicted loading time.
    """
    if dry_run and diff:
        raise click.UsageError("--dry-run and --diff cannot be combined.")
    variants, say = _variants(path, variant_texts), view_for(sys.stdout).say
    with reported(_NoComparison if diff else click.ClickException):
        environ = launch.environment()
        others = variables.from_command_line(env, environ)
        spec = EndpointSpec(name, image, role, _instance(instance_type), count, model_data, others)
        deployment = plan(spec, variants, update or diff)
        if dry_run:
            click.echo(as_script(deployment, _region(image, environ)), nl=False)
            return
        sagemaker = _client(_region(image, environ))
        if not diff:
            for note in deployment.notes:
                say(f"note: {note}")
            execute(deployment, sagemaker, environ, say)
            return
        before = differences.running_values(name, sagemaker)
        after = differences.planned_values(deployment, environ)
        lines = list(differences.differences(before, after, deployment.retained_fields))
    say("\n".join(lines) or "no differences")
    sys.exit(1 if lines else 0)


class _NoComparison(click.ClickException):
    """An error with --diff, whose exit code 1 means differences."""

    exit_code = 2


def _instance(name: str) -> Instance:
    """Return an instance type. Raises: CannotDeploy."""
    try:
        return hardware.instance(name)
    except NoSuchHardwareError as error:
        raise CannotDeploy(str(error)) from error


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
        weight = float(match["weight"]) if match["weight"] else None
        variants.append(VariantSpec(match["name"], Path(match["path"]), weight))
    return variants


def _region(image: str, environ: Mapping[str, str]) -> str | None:
    """Return the region of the endpoint, which is that of an image in ECR; None if boto3 must find it."""
    # boto3 itself reads only AWS_DEFAULT_REGION.
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    match = _REGISTRY.fullmatch(image)
    return named or (match["region"] if match else None)


def _client(region: str | None) -> Any:
    """Return boto3's SageMaker client. boto3 is imported here, because a dry run needs none. Raises: CannotDeploy."""
    import boto3

    try:
        return boto3.client("sagemaker", region_name=region)
    except NoRegionError as error:
        raise CannotDeploy(
            "no AWS region: set AWS_REGION or AWS_DEFAULT_REGION, or choose a profile that has one (AWS_PROFILE)"
        ) from error
    except BotoCoreError as error:
        raise CannotDeploy(str(error)) from error
