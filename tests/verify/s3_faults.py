"""269 MB from S3 with 20 cuts equal the originals; every failure is one sentence within 10 s.

The S3 server is SeaweedFS, behind a proxy that can cut, corrupt, truncate, delay and refuse, and that counts the
bytes it sends. Each case runs `python -m container serve` or `prepare` with an empty cache. A cut may lose the 256
KiB block that was being read. The full disk is a separate, small file system; creating it requires root. It keeps
what has arrived: when space is free again, the next start fetches the rest.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.faulty_proxy import (
    FaultyProxy,
    answer,
    corrupt,
    every_object,
    everything,
    faulty_proxy,
    listing,
    object_named,
    truncate,
)
from tests.support.model_files import content
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.seaweed import SECRET_KEY, Seaweed, credentials, running
from tests.verify.lab import Lab, Report, run_alone

_BUCKET = "models"
_CUTS = 20
_SEED = 20261121
_IN_FLIGHT = 256 << 10
"""Bytes that a cut may lose: the block that was being read."""
_SENTENCE_SECONDS = 10.0
WEIGHTS = object_named("model.safetensors")


@dataclass(frozen=True, slots=True)
class _Place:
    """The S3 server with the model, the proxy in front of it, and the lab."""

    lab: Lab
    server: Seaweed
    proxy: FaultyProxy

    def files(self) -> list[Path]:
        return sorted(self.lab.model.iterdir())

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files())


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure, and the error that it must give."""

    name: str
    expected: str
    """Part of the expected error."""
    prepare: Callable[[_Place], None]
    address: str = f"s3://{_BUCKET}/smollm2/"


def _fault(matches: Callable[..., bool], change: Callable[..., object]) -> Callable[[_Place], None]:
    return lambda place: place.proxy.fault(matches, change)  # type: ignore[arg-type]


def _change_midway(place: _Place) -> None:
    """Replace the weights when 30 MB of them have been sent. Reads that start later must notice."""

    def upload() -> None:
        place.server.client().put_object(
            Bucket=_BUCKET, Key="changing/model.safetensors", Body=b"another model"
        )

    place.server.upload(place.lab.model, _BUCKET, "changing/")
    place.proxy.when_sent(30_000_000, upload)


FAILURES = (
    _Failure("a corrupted byte", "differs): it was damaged", _fault(WEIGHTS, corrupt(123_456_789))),
    _Failure("a truncated object", "shorter than listed", _fault(WEIGHTS, truncate(200_000_000))),
    _Failure(
        "an object that changes", "changed while it was read", _change_midway, f"s3://{_BUCKET}/changing"
    ),
    _Failure("no permission to list", "no permission (403", _fault(listing, answer(403, "AccessDenied"))),
    _Failure(
        "no permission to read", "no permission (403", _fault(every_object, answer(403, "AccessDenied"))
    ),
    _Failure("a missing bucket", "bucket does not exist", lambda place: None, "s3://nobodys-bucket/smollm2/"),
    _Failure("a missing prefix", "no object under this prefix", lambda place: None, f"s3://{_BUCKET}/smollm"),
    _Failure("a missing object", "does not exist", _fault(WEIGHTS, answer(404, "NoSuchKey"))),
    _Failure(
        "500 for every request", "(500, InternalError)", _fault(everything, answer(500, "InternalError"))
    ),
    _Failure("503 for every object", "SlowDown", _fault(every_object, answer(503, "SlowDown"))),
    _Failure(
        "no response", "does not respond in time", lambda place: place.proxy.fault(everything, delay=60)
    ),
)


def verify(lab: Lab, report: Report) -> None:
    with running(lab.folder / "seaweed") as server, faulty_proxy(server.url) as proxy:
        server.upload(lab.model, _BUCKET, "smollm2/")
        place = _Place(lab, server, proxy)
        _check_cuts(place, report)
        for failure in FAILURES:
            proxy.heal()
            failure.prepare(place)
            with _cache(place) as cache:
                _check_failure(place, failure, cache, report)
        proxy.heal()
        _check_small_disk(place, report)


@contextmanager
def _cache(place: _Place) -> Iterator[Path]:
    folder = place.lab.folder / "s3-cache"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: str, place: _Place, cache: Path, address: str) -> tuple[int, str, float]:
    """Run a command. Returns its exit code, its output on both streams and the seconds."""
    extra = {**credentials(place.proxy.url), "LMI_CACHE_DIR": str(cache)}
    argument = address
    if command == "serve":
        folder = place.lab.folder / "s3-serve"
        folder.mkdir(exist_ok=True)
        (folder / "serving.properties").write_text(f"engine=MPI\noption.model_id={address}\n")
        argument = str(folder)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "container", command, argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=REPO_ROOT,
        env=child_environment(extra),
        timeout=300,
    )
    return done.returncode, done.stdout, time.monotonic() - began


def _check_cuts(place: _Place, report: Report) -> None:
    size = place.size()
    generator = random.Random(_SEED)
    place.proxy.cut_at([generator.randrange(size) for _ in range(_CUTS)])
    with _cache(place) as cache:
        code, output, seconds = _run("prepare", place, cache, f"s3://{_BUCKET}/smollm2")
        fetched, cuts = place.proxy.object_bytes, _CUTS - place.proxy.cuts_left
        report.figure(f"{size} bytes, {cuts} cuts, {fetched} bytes fetched, {seconds:.1f} s")
        report.require(code == 0, f"exit code {code}; {_last_line(output)}")
        report.require(cuts == _CUTS, f"{cuts} of {_CUTS} cuts took place")
        folder = Path(_last_line(output))
        copies = content(folder)
        equal = [path.name for path in place.files() if copies.get(path.name) == path.read_bytes()]
        report.require(len(equal) == len(place.files()), f"equal to the originals: {', '.join(equal)}")
        limit = 1.1 * size + _CUTS * _IN_FLIGHT
        report.require(
            fetched <= limit,
            f"bytes fetched are {fetched / size:.4f} times the size; at most {limit / size:.4f}",
        )


def _check_failure(
    place: _Place, failure: _Failure, cache: Path, report: Report, keeps_files: bool = False
) -> None:
    """Check one failure of `serve`: its error, the time, the exit code and the clean cache.

    keeps_files: whether it leaves partial files in the cache.
    """
    code, output, seconds = _run("serve", place, cache, failure.address)
    sentence = _last_line(output)
    report.figure(f"{failure.name}: {sentence}")
    report.require(
        failure.expected in sentence
        and "s3://" in sentence
        and "Traceback" not in output
        and SECRET_KEY not in output,
        f"{failure.name}: one sentence that contains '{failure.expected}'",
    )
    report.require(seconds <= _SENTENCE_SECONDS, f"{failure.name}: {seconds:.1f} s after the start")
    report.require(code != 0, f"{failure.name}: exit code {code}")
    leftovers = _leftovers(cache)
    report.require(
        bool(leftovers) == keeps_files,
        f"{failure.name}: partial files in the cache: {', '.join(leftovers) or 'none'}",
    )


def _check_small_disk(place: _Place, report: Report) -> None:
    """Check a disk that is too small from the start, then one that fills up during the download."""
    disk = place.lab.folder / "small-disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        report.require(False, "a small disk could not be mounted: this check needs root")
        return
    other = disk / "other"
    try:
        other.write_bytes(bytes(150 << 20))
        too_small = _Failure("a disk that is too small", "MiB free", lambda place: None)
        _check_failure(place, too_small, disk / "cache", report)
        report.require(place.proxy.object_bytes == 0, "a disk that is too small: nothing was fetched")
        other.unlink()
        place.proxy.when_sent(150_000_000, lambda: _fill(other))
        fills_up = _Failure("a disk that fills up", "is full", lambda place: None)
        _check_failure(place, fills_up, disk / "cache", report, keeps_files=True)
        other.unlink()
        place.proxy.heal()  # resets its counter
        code, output, _ = _run("prepare", place, disk / "cache", fills_up.address)
        report.require(code == 0, f"after freeing space: exit code {code}; {_last_line(output)}")
        share = place.proxy.object_bytes / place.size()
        report.require(
            share <= 0.7, f"after freeing space: bytes fetched are {share:.4f} times the size; at most 0.7"
        )
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError:
            return


def _leftovers(cache: Path) -> list[str]:
    """List all files in the cache but locks and small notes. A published copy is a leftover too."""
    notes = (".lock", ".json")
    files = [path for path in cache.rglob("*") if path.is_file()] if cache.exists() else []
    kept = [path for path in files if not (path.parent.name == ".remote" and path.suffix in notes)]
    return sorted(str(path.relative_to(cache)) for path in kept)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


if __name__ == "__main__":
    run_alone(verify)
