"""Run chapters of the GPU check. Each part is a process of its own, which is killed when it times out. Its results so
far are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.gpu.compile_cache import CompileCache
from tests.gpu.plan import CHAPTER_SECONDS, CHAPTERS, CHECKS_FAILED, PARTS
from tests.gpu.records import Records, read
from tests.gpu.report import write_page

_MIN_SECONDS = 15.0
"""A part is not started with less time."""
_GRACE_SECONDS = 3.0
"""Seconds between SIGTERM and SIGKILL."""
_MAX_LOG_BYTES = 12_000_000
_EXPANDABLE_SEGMENTS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}
"""The settings of `container.run.launch`."""
NO_GPU = 2


@dataclass
class Check:
    """A run of one or several chapters."""

    out: Path
    cache: CompileCache
    smoke: bool
    environment: dict[str, str]
    records: Records = field(init=False)
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    failed_parts: list[str] = field(default_factory=list)
    """Parts that failed or were stopped."""
    _log_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.records = Records(self.out)

    @property
    def time_factor(self) -> float:
        """Factor on all time limits. The interpreter is slow, and a smoke run only checks that parts finish."""
        return 5.0 if self.smoke else 1.0

    def log(self, source: str, line: str) -> None:
        """Write a line to the log and to stdout."""
        text = f"{time.strftime('%H:%M:%S')} {source:16} {line.rstrip()}"
        with self._log_lock:
            print(text, flush=True)
            path = self.out / "log.txt"
            if not path.exists() or path.stat().st_size < _MAX_LOG_BYTES:
                with path.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")


def run_chapters(numbers: Sequence[int], out: Path, cache: Path | None, smoke: bool = False) -> int:
    """Return 0 if all parts passed, 1 if some failed, 2 if there is no working GPU."""
    # Outside the results folder: later runs on this machine reuse the kernels, but only the archives are results.
    kernels = CompileCache(Path("build/gpu-kernels").absolute())
    check = Check(out, kernels, smoke, _environment(kernels.folder))

    def stop(number: int, frame: FrameType | None) -> None:
        for process in list(check.running):
            _terminate(process)
        check.cache.pack(out)
        write_page(out)
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if cache is not None:
        check.log("cache", f"{kernels.unpack(cache)} archives read, {len(kernels)} kernels")
    for number in numbers:
        if not _run_chapter(check, number):
            return NO_GPU
    write_page(out)
    for line in _summary(out):
        check.log("summary", line)
    return 1 if check.failed_parts else 0


def _run_chapter(check: Check, number: int) -> bool:
    """Run a chapter. Return False if its first part, which checks the device, fails."""
    chapter, deadline = CHAPTERS[number], time.monotonic() + CHAPTER_SECONDS * check.time_factor
    check.log("chapter", f"{number}: {chapter.title}")
    for stage in chapter.stages:
        codes = run_stage(check, stage, deadline)
        if (
            stage == ("device",)
            and codes["device"] != 0
            and _EXPANDABLE_SEGMENTS.items() <= check.environment.items()
        ):
            check.log("device", "retrying without expandable segments")
            for name in _EXPANDABLE_SEGMENTS:
                del check.environment[name]
            codes = run_stage(check, stage, deadline)
        if stage == ("device",) and codes["device"] != 0:
            return False
        for archive in check.cache.pack(check.out):
            check.log("cache", f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")
        write_page(check.out)
    return True


def run_stage(check: Check, parts: Sequence[str], deadline: float) -> dict[str, int | None]:
    """Run parts concurrently. Return their exit codes; None: no time was left for the part, or it timed out."""
    codes: dict[str, int | None] = {}
    threads = [
        threading.Thread(
            target=lambda part=part: codes.update({part: _run_part(check, part, deadline, len(parts))})
        )
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def _run_part(check: Check, part: str, deadline: float, num_concurrent: int) -> int | None:
    seconds = min(PARTS[part].seconds * check.time_factor, deadline - time.monotonic())
    if seconds < _MIN_SECONDS:
        _record_stop(check, part, "not started: no time left", "skipped")
        return None
    threads = str(max(1, (os.cpu_count() or 1) // num_concurrent))
    started = time.monotonic()
    check.records.write(part, "launch")
    process = subprocess.Popen(
        part_command(check, part, seconds - _GRACE_SECONDS),
        env=check.environment | {"OMP_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A process group of its own: child processes are killed with it.
        start_new_session=True,
    )
    check.running.add(process)
    timed_out = threading.Event()

    def time_out() -> None:
        timed_out.set()
        _terminate(process)

    timer = threading.Timer(seconds - _GRACE_SECONDS, time_out)
    timer.start()
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            check.log(part, line)
    code = process.wait()
    timer.cancel()
    _kill_group(process)
    check.running.discard(process)
    elapsed = time.monotonic() - started
    if timed_out.is_set():
        _record_stop(check, part, f"timed out after {elapsed:.0f} s")
        return None
    check.log(part, f"exited with code {code} after {elapsed:.0f} s")
    if code not in (0, CHECKS_FAILED):
        _record_stop(check, part, f"crashed with exit code {code} after {elapsed:.0f} s")
    elif code:
        check.failed_parts.append(part)
    return code


def part_command(check: Check, part: str, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "tests.gpu.check", "--part", part, "--out", str(check.out)]
    return [*command, "--seconds", f"{seconds:.0f}", *(["--smoke"] if check.smoke else [])]


def _record_stop(check: Check, part: str, why: str, kind: str = "stopped") -> None:
    check.log(part, why)
    check.failed_parts.append(part)
    check.records.write(part, kind, why=why)


def _terminate(process: subprocess.Popen[str]) -> None:
    """Stop the process and its children, with SIGTERM and then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill remaining child processes. They may hold the GPU, or the pipe with the output."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(kernels: Path) -> dict[str, str]:
    base: Mapping[str, str] = os.environ
    return {
        **_EXPANDABLE_SEGMENTS,
        **base,
        "TRITON_CACHE_DIR": str(kernels),
        "PYTHONUNBUFFERED": "1",
        # Nothing is downloaded, and nothing waits for network timeouts.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _summary(out: Path) -> list[str]:
    lines = []
    for run in read([out / "results.jsonl"]):
        failed = [entry["name"] for entry in run["entries"] if entry["passed"] is False]
        state = run["stopped"] or ("finished" if run["finished"] else "incomplete")
        lines.append(f"{run['part']}: {state}, {len(run['entries'])} entries, {len(failed)} failed")
        lines += [f"  FAIL {name}" for name in failed]
    return [*lines, f"results: {out}"]
