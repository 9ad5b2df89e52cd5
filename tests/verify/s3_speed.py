"""A model of 5 GB from S3, verified, at least as fast as boto3's transfer and parallel ranges, not verified.

    python -m tests.verify.s3_speed [--gigabytes N] [--rounds N]

Five shards of 1 GB, uploaded by boto3 (parts of 8 MiB, a CRC32 each), are in SeaweedFS on this machine, so the
network costs nothing and the cost of the clients is visible. The ranges are 50 MiB each, five at once in one process
per core, as in s5cmd's defaults. All clients alternate in five rounds; each run is a new process with an empty
folder and flushes to the disk. The median of the rounds' ratios must be at most 1.05. The processor time of the
clients is printed too.

Needs 15 GB of disk; with `--gigabytes 2` less. On a virtual machine whose host reclaims freed memory, first writes
to page cache pages may take most of the time for every client, and the ratios of the rounds are far apart. Less
data, which fits into memory that the machine already has, then gives clearer results.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.support.model_folders import write_model
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.s3_peers import PEERS
from tests.support.seaweed import Seaweed, credentials, running
from tests.verify.lab import Lab, Report, run_alone

_SHARDS = 5
_BUCKET = "models"
_OURS = "lmi prepare"
_TOLERANCE = 1.05
"""Maximum median ratio. Two runs of the same program differ by more than 5 %."""


def verify(lab: Lab, report: Report, *, gigabytes: float = 5.0, rounds: int = 5) -> None:
    folder = lab.folder / "s3-speed"
    needed = 3 * gigabytes * 1e9
    if shutil.disk_usage(lab.folder).free < needed:
        report.require(
            False, f"{lab.folder}: not enough space; {needed / 1e9:.0f} GB are needed (see --gigabytes)"
        )
        return
    with running(folder / "seaweed") as server:
        _upload(server, folder / "model", gigabytes)
        # Ours runs beside the fastest peer, because the speed of the machine drifts.
        *others, fastest = PEERS
        seconds: dict[str, list[float]] = {name: [] for name in (*others, _OURS, fastest)}
        processor: dict[str, list[float]] = {name: [] for name in seconds}
        for number in range(rounds):
            order = list(seconds) if number % 2 == 0 else list(seconds)[::-1]
            for name in order:
                before = _processor_seconds()
                seconds[name].append(_run(name, server, folder / "target", report))
                processor[name].append(_processor_seconds() - before)
            took = ", ".join(f"{name} {seconds[name][-1]:.1f} s" for name in seconds)
            report.figure(f"round {number + 1}: {took}; load {os.getloadavg()[0]:.1f}")
    used = ", ".join(f"{name} {statistics.median(found):.1f} s" for name, found in processor.items())
    report.figure(f"processor time of the clients, median: {used}")
    for peer in PEERS:
        ratios = [ours / theirs for ours, theirs in zip(seconds[_OURS], seconds[peer], strict=True)]
        median = statistics.median(ratios)
        report.require(
            median <= _TOLERANCE,
            f"{gigabytes:g} GB by {_OURS} take {median:.2f} of the time of {peer} "
            f"({min(ratios):.2f} to {max(ratios):.2f}); at most {_TOLERANCE:g}",
        )


def _upload(server: Seaweed, folder: Path, gigabytes: float) -> None:
    """Upload the model like boto3: parts of 8 MiB, each with a checksum."""
    model = write_model(folder, 10_000_000, shards=_SHARDS)
    server.make_bucket(_BUCKET)
    for path in sorted(model.iterdir()):
        if path.suffix == ".safetensors":
            _lengthen(path, int(gigabytes * 1e9 / _SHARDS))
        server.client().upload_file(str(path), _BUCKET, f"large/{path.name}")
        path.unlink()


def _lengthen(path: Path, num_bytes: int) -> None:
    """Replace a small tensor by a big one that repeats its content."""
    content = path.read_bytes()
    body = content[8 + int.from_bytes(content[:8], "little") :]
    rows = num_bytes // 2048
    name = re.findall(rb'"(\w+)": \{"dtype"', content)[0].decode()
    header = (
        f'{{"{name}":{{"dtype":"BF16","shape":[{rows},1024],"data_offsets":[0,{rows * 2048}]}}}}'.encode()
    )
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, rows * 2048, len(body)):
            file.write(body[: rows * 2048 - start])


def _processor_seconds() -> float:
    """Return the CPU seconds of all child processes that have exited."""
    times = os.times()
    return times.children_user + times.children_system


def _run(name: str, server: Seaweed, target: Path, report: Report) -> float:
    """Fetch the prefix into an empty folder. Returns the seconds of the whole process."""
    environment = child_environment({**credentials(server.url), "LMI_CACHE_DIR": str(target)})
    command = [sys.executable, "-m", "tests.support.s3_peers", name, _BUCKET, "large/", str(target)]
    if name == _OURS:
        command = [sys.executable, "-m", "container", "prepare", f"s3://{_BUCKET}/large"]
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=REPO_ROOT, env=environment
    )
    seconds = time.monotonic() - began
    if done.returncode != 0 or (name == _OURS and "verified by CRC32 by part" not in done.stderr):
        report.require(False, f"{name} failed: {done.stderr[-2000:]}")
    shutil.rmtree(target)
    os.sync()  # the next client must not wait for these writes
    return seconds


if __name__ == "__main__":
    run_alone(verify)
