"""lmi endpoint: the documentation's boto3 script, 9:1 shares, updates under load without a failure, rollback.

`lmi endpoint` runs as a process with containers of a tiny Llama. The script is taken from the page; only the
folder of its model is replaced. During an update, eight clients send requests from before its start until after its
end. The bad version has a dtype that does not exist, so its container exits at start-up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.endpoint_process import running_endpoint
from tests.support.endpoints import ENDPOINT, client
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.several_models import save_models
from tests.support.waiting import wait_until
from tests.verify.lab import Lab, Report, run_alone

_REQUESTS = 2000
_CONCURRENCY = 8
_FIELDS: dict[str, Any] = {
    "EndpointName": ENDPOINT,
    "ContentType": "application/json",
    "Body": json.dumps({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 4}}),
}


def verify(lab: Lab, report: Report) -> None:
    folder = save_models(lab.folder / "endpoint-models", "a")["a"]
    with running_endpoint(lab.folder / "endpoint-state") as endpoint:
        sagemaker, runtime = (client(name, endpoint.url) for name in ("sagemaker", "sagemaker-runtime"))
        _deploy(endpoint.url, folder, lab.folder)
        status = sagemaker.describe_endpoint(EndpointName=ENDPOINT)["EndpointStatus"]
        report.require(status == "InService", f"the documentation's script deployed two variants: {status}")

        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            shares = Counter(pool.map(lambda _: _invoke(runtime), range(_REQUESTS)))
        share = shares["A"] / _REQUESTS
        report.require(
            abs(share - 0.9) <= 0.02, f"{share:.1%} of {_REQUESTS} requests went to A (weights 9:1)"
        )
        failed = _REQUESTS - shares["A"] - shares["B"]
        report.require(failed == 0, f"{failed} of them failed")
        targets = Counter(_invoke(runtime, TargetVariant="B") for _ in range(100))
        report.require(targets == {"B": 100}, f"TargetVariant=B: {dict(targets)}")

        _configure(sagemaker, folder, "next", {"OPTION_MAX_ROLLING_BATCH_SIZE": "4"})
        with _load(runtime) as seen:
            described = _update(sagemaker, "next", seen)
        config, failed = described["EndpointConfigName"], seen.total() - seen["A"] - seen["B"] - seen["next"]
        report.require(
            config == "next", f"an update under load: {config} serves and gave {seen['next']} answers"
        )
        report.require(failed == 0, f"{failed} of {seen.total()} requests failed during the update")

        _configure(sagemaker, folder, "bad", {"OPTION_DTYPE": "fp17"})
        with _load(runtime) as seen:
            described = _update(sagemaker, "bad", seen)
        config, reason = described["EndpointConfigName"], described.get("FailureReason", "")
        report.require(config == "next" and "fp17" in reason, f"a bad version: {config} serves; {reason}")
        failed = seen.total() - seen["next"]
        report.require(failed == 0, f"{failed} of {seen.total()} requests failed during the update")
    report.require(endpoint.exit_code == 0, f"SIGTERM: exit code {endpoint.exit_code}")


def _deploy(url: str, folder: Path, work: Path) -> None:
    """Run the script of docs/rehearsing.md, with the model's folder in place of the example folder."""
    page = (REPO_ROOT / "docs" / "rehearsing.md").read_text(encoding="utf-8")
    script = page.split("```python\n", 1)[1].split("```", 1)[0]
    path = work / "deploy.py"
    path.write_text(script.replace("file:///path/to/model/", f"file://{folder}/"))
    variables = {
        "AWS_ENDPOINT_URL_SAGEMAKER": url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }
    subprocess.run([sys.executable, str(path)], env=child_environment(variables), check=True)


def _configure(sagemaker: Any, folder: Path, name: str, environment: dict[str, str]) -> None:
    """Create a model, and a configuration with one variant, all with this name."""
    source = {"S3Uri": f"file://{folder}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        "Image": "lmi",
        "ModelDataSource": {"S3DataSource": source},
        "Environment": environment,
    }
    sagemaker.create_model(ModelName=name, PrimaryContainer=container)
    variant = {"VariantName": name, "ModelName": name, "InitialInstanceCount": 1}
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])


def _invoke(runtime: Any, **fields: str) -> str:
    """Return the variant that answered, or an error text."""
    try:
        reply = runtime.invoke_endpoint(**_FIELDS, **fields)
        if "generated_text" not in json.load(reply["Body"]):
            return "no text"
        return str(reply["InvokedProductionVariant"])
    except Exception as error:  # counted as a failure
        return f"{type(error).__name__}: {error}"


@contextmanager
def _load(runtime: Any) -> Iterator[Counter[str]]:
    """Send requests during the block, and until there are `_REQUESTS`. Yields the counts by variant that answered."""
    stopping, lock = threading.Event(), threading.Lock()
    seen: Counter[str] = Counter()

    def count() -> int:
        with lock:
            return seen.total()

    def run() -> None:
        while not stopping.is_set() or count() < _REQUESTS:
            variant = _invoke(runtime)
            with lock:
                seen[variant] += 1

    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        running = [pool.submit(run) for _ in range(_CONCURRENCY)]
        try:
            yield seen
        finally:
            stopping.set()
    for future in running:
        future.result()


def _update(sagemaker: Any, config: str, seen: Counter[str]) -> dict[str, Any]:
    """Update the endpoint under load, wait until that is complete, and return the endpoint's description."""
    wait_until(lambda: sum(list(seen.values())) >= _REQUESTS // 4)
    sagemaker.update_endpoint(EndpointName=ENDPOINT, EndpointConfigName=config)
    while True:
        described: dict[str, Any] = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
        if described["EndpointStatus"] != "Updating":
            return described
        time.sleep(0.2)


if __name__ == "__main__":
    run_alone(verify)
