"""The image: built, started as a platform starts it, answers, stops in time, reaps orphans.

The CPU image is built by Docker if its daemon answers, otherwise by buildah, which requires root
(`image_engines.py`). Without Docker, containers share the host's network. The model is mounted read-only at
`/opt/ml/model`. The second build is of the same files with a comment added to one. The orphan's parent exits first,
so the orphan becomes a child of the server. Builds are removed at the end. `make image-check` runs this module too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from container.run.local_server import free_port
from tests.support.client import Client
from tests.support.paths import REPO_ROOT
from tests.verify.failures import Load, judge_clients
from tests.verify.image_engines import Container, ImageEngine, Start, find_engine
from tests.verify.lab import Lab, Report, run_alone

READY_TIMEOUT = 240.0
IDLE_SECONDS = 5.0
LOADED_SECONDS = 29.0
REFUSAL_SECONDS = 60.0
_INSTALLS = "installing the dependencies\n"
"""Line that the build prints before it installs packages."""
_CURL = (
    "--silent",
    "--show-error",
    "--fail",
    "--max-time",
    "120",
    "--header",
    "Content-Type: application/json",
)
_GB = 1e9


def copy_sources(folder: Path) -> None:
    """Copy the working tree: tracked files, and untracked files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO_ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source, target = REPO_ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@contextmanager
def started(engine: ImageEngine, lab: Lab, name: str, start: Start) -> Iterator[Container]:
    folder = lab.folder / name
    folder.mkdir()
    container = engine.start(start, folder)
    try:
        yield container
    finally:
        container.remove()


def on_port(lab: Lab, **environment: str) -> tuple[Client, Start]:
    """Return a client and the settings of its container, which serves the bundled model from /opt/ml/model."""
    port = free_port()
    start = Start({"SAGEMAKER_BIND_TO_PORT": str(port), **environment}, lab.model)
    return Client(f"http://127.0.0.1:{port}"), start


def wait_ready(container: Container, client: Client, report: Report, what: str) -> bool:
    begin = time.monotonic()
    while time.monotonic() - begin < READY_TIMEOUT:
        if client.ping(timeout=2.0) == 200:
            report.require(True, f"{what}: /ping is 200 after {time.monotonic() - begin:.0f} s")
            return True
        if (code := container.wait(0.2)) is not None:
            report.require(False, f"{what}: exit code {code}: {container.log()[-2000:]}")
            return False
    report.require(False, f"{what}: /ping is not 200 after {READY_TIMEOUT:g} s: {container.log()[-2000:]}")
    return False


def stop(container: Container, report: Report, limit: float, what: str) -> None:
    begin = time.monotonic()
    container.terminate()
    code = container.wait(limit + 5.0)
    seconds = time.monotonic() - begin
    report.require(
        code == 0 and seconds <= limit, f"{what}: exit code {code} after {seconds:.1f} s, limit {limit:g} s"
    )


def verify_build(engine: ImageEngine, context: Path, report: Report) -> None:
    begin = time.monotonic()
    report.require(_INSTALLS in engine.build(context), f"built in {time.monotonic() - begin:.0f} s")
    report.figure(f"size, unpacked: {engine.size() / _GB:.2f} GB")
    with (context / "container" / "cli.py").open("a") as file:
        file.write("\n# An edit.\n")
    begin = time.monotonic()
    again = engine.build(context)
    report.require(
        _INSTALLS not in again,
        f"after an edit of a source file, nothing is installed again: {time.monotonic() - begin:.0f} s",
    )


def verify_contents(container: Container, report: Report) -> None:
    """Check the contents of the image and the permissions of a server process."""
    probe = (
        "id -u; for tool in g++ gcc make; do command -v $tool; done;"
        " for place in / /opt/lmi /opt/ml/model; do touch $place/x 2>/dev/null && echo $place can be written;"
        " done; /opt/lmi/.venv/bin/python -c 'import triton' 2>/dev/null && echo triton; true"
    )
    found = container.execute("sh", "-c", probe).split("\n")
    report.require(
        found == ["1000", ""], f"user 1000, no compiler, no triton, read-only except /tmp: {found[:-1]}"
    )


def verify_orphan(container: Container, report: Report) -> None:
    """A process whose parent exits becomes a child of process 1. When it exits, it must not remain a zombie."""
    container.execute("sh", "-c", "(sleep 0.1; exec true) >/dev/null 2>&1 &")
    zombies = "grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null; true"
    begin = time.monotonic()
    seen = ""
    while time.monotonic() - begin < 10.0:
        time.sleep(0.5)
        seen = container.execute("sh", "-c", zombies).strip()
        if not seen and time.monotonic() - begin > 1.0:
            break
    report.require(not seen, f"an orphan is reaped: zombies left: {seen or 'none'}")


def verify_serving(engine: ImageEngine, lab: Lab, report: Report) -> None:
    client, start = on_port(lab)
    with started(engine, lab, "serve", start) as container:
        if not wait_ready(container, client, report, "serve, 64 MB of /dev/shm"):
            return
        body = '{"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16}}'
        answer = subprocess.run(
            ["curl", *_CURL, f"{client.base_url}/invocations", "--data", body],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        report.require(
            "Paris" in answer.stdout, f"curl: {answer.stdout.strip()[:200]}{answer.stderr.strip()}"
        )
        log = container.log()
        report.require("CPU kernels: native" in log, "the native kernels are used")
        verify_contents(container, report)
        verify_orphan(container, report)
        stop(container, report, IDLE_SECONDS, "SIGTERM, idle")


def verify_load(engine: ImageEngine, lab: Lab, report: Report) -> None:
    client, start = on_port(lab, OPTION_TENSOR_PARALLEL_DEGREE="2")
    with started(engine, lab, "load", start) as container:
        if not wait_ready(container, client, report, "two ranks, 64 MB of /dev/shm"):
            return
        report.require(
            "listens on all network interfaces" not in container.log(), "mpirun's port stays on loopback"
        )
        load = Load(client, [20] * 4 + [6000] * 4)
        stop(container, report, LOADED_SECONDS, "SIGTERM under load")
        judge_clients(report, load.outcomes(), what="SIGTERM under load")


def verify_refusal(engine: ImageEngine, lab: Lab, report: Report) -> None:
    """Ranks that do not fit into /dev/shm are refused, and the error names the required size."""
    for ranks, shm_mb in ((2, 8), (16, 64)):
        _, start = on_port(lab, OPTION_TENSOR_PARALLEL_DEGREE=str(ranks))
        start = Start(start.environment, start.model, shm_mb)
        with started(engine, lab, f"refusal-{ranks}", start) as container:
            code = container.wait(REFUSAL_SECONDS)
            reason = re.search(
                r"^.*shared memory is too small.*--shm-size=.*$", container.log(), re.MULTILINE
            )
            text = reason[0] if reason else container.log()[-500:]
            report.require(code == 1 and reason is not None, f"{ranks} ranks, {shm_mb} MB: {code}: {text}")


def verify(lab: Lab, report: Report) -> None:
    engine = find_engine(REPO_ROOT / "build" / "image-check")
    if isinstance(engine, str):
        report.require(False, engine)
        return
    report.figure(f"container engine: {type(engine).__name__}")
    context = lab.folder / "context"
    copy_sources(context)
    try:
        verify_build(engine, context, report)
        verify_serving(engine, lab, report)
        verify_load(engine, lab, report)
        verify_refusal(engine, lab, report)
    finally:
        engine.close()


if __name__ == "__main__":
    run_alone(verify)
