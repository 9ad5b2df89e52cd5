"""Run chapters of the GPU check. Each part is a process of its own, which is killed when its time is over. Its results
so far are kept."""

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
from tests.gpu.plan import CHAPTER_SECONDS, CHAPTERS, PARTS, SOME_FAILED
from tests.gpu.records import Records, read
from tests.gpu.report import write_page

_LEAST_SECONDS = 15.0
"""A part is not started with less time."""
_TO_END = 3.0
"""Seconds between SIGTERM and SIGKILL."""
_MOST_LOG_BYTES = 12_000_000
_GROWING = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""The setting of `container.run.launch`."""
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
    wrong: list[str] = field(default_factory=list)
    """Parts that failed or were stopped."""
    _log_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.records = Records(self.out)

    @property
    def patience(self) -> float:
        """Factor on all time limits. A smoke run shows that parts finish, not how fast: the interpreter is slow."""
        return 5.0 if self.smoke else 1.0

    def say(self, who: str, line: str) -> None:
        """Write a line to the log and to stdout."""
        text = f"{time.strftime('%H:%M:%S')} {who:16} {line.rstrip()}"
        with self._log_lock:
            print(text, flush=True)
            log = self.out / "log.txt"
            if not log.exists() or log.stat().st_size < _MOST_LOG_BYTES:
                with log.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")


def run_chapters(numbers: Sequence[int], out: Path, cache: Path | None, smoke: bool = False) -> int:
    """Return 0 if all parts passed, 1 if some failed, 2 if there is no working GPU."""
    # Next to the results, not among them: later calls on this machine find the kernels, but they are not sent anywhere.
    kernels = CompileCache(Path("build/gpu-kernels").absolute())
    check = Check(out, kernels, smoke, _environment(kernels.folder))

    def end(number: int, frame: FrameType | None) -> None:
        for process in list(check.running):
            _end(process)
        check.cache.pack(out)
        write_page(out)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if cache is not None:
        check.say("cache", f"{kernels.unpack(cache)} archives read, {len(kernels)} kernels")
    for number in numbers:
        if not _run_chapter(check, number):
            return NO_GPU
    write_page(out)
    for line in _summary(out, check.wrong):
        check.say("summary", line)
    return 1 if check.wrong else 0


def _run_chapter(check: Check, number: int) -> bool:
    """Run a chapter. Return False if its first part, which checks the device, fails."""
    chapter, ends = CHAPTERS[number], time.monotonic() + CHAPTER_SECONDS * check.patience
    check.say("chapter", f"{number}: {chapter.title}")
    for stage in chapter.stages:
        codes = run_stage(check, stage, ends)
        if stage == ("device",) and codes["device"] != 0 and _GROWING.items() <= check.environment.items():
            check.say("device", "once more, without segments of memory that grow")
            for name in _GROWING:
                del check.environment[name]
            codes = run_stage(check, stage, ends)
        if stage == ("device",) and codes["device"] != 0:
            return False
        for archive in check.cache.pack(check.out):
            check.say("cache", f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")
        write_page(check.out)
    return True


def run_stage(check: Check, parts: Sequence[str], ends: float) -> dict[str, int | None]:
    """Run parts concurrently. Return their exit codes; None: no time was left for the part, or it was killed."""
    codes: dict[str, int | None] = {}
    threads = [
        threading.Thread(
            target=lambda part=part: codes.update({part: _run_part(check, part, ends, len(parts))})
        )
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def _run_part(check: Check, part: str, ends: float, beside: int) -> int | None:
    seconds = min(PARTS[part].seconds * check.patience, ends - time.monotonic())
    if seconds < _LEAST_SECONDS:
        _stopped(check, part, "no time was left for it")
        return None
    threads = str(max(1, (os.cpu_count() or 1) // beside))
    started = time.monotonic()
    process = subprocess.Popen(
        part_command(check, part, seconds - _TO_END),
        env=check.environment | {"OMP_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A process group of its own: child processes are killed with it.
        start_new_session=True,
    )
    check.running.add(process)
    over = threading.Event()

    def end() -> None:
        over.set()
        _end(process)

    timer = threading.Timer(seconds - _TO_END, end)
    timer.start()
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            check.say(part, line)
    code = process.wait()
    timer.cancel()
    _kill_group(process)
    check.running.discard(process)
    took = time.monotonic() - started
    if over.is_set():
        _stopped(check, part, f"its time was over after {took:.0f} s")
        return None
    check.say(part, f"ended with {code} after {took:.0f} s")
    if code not in (0, SOME_FAILED):
        _stopped(check, part, f"it broke off with {code} after {took:.0f} s")
    elif code:
        check.wrong.append(part)
    return code


def part_command(check: Check, part: str, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "tests.gpu.check", "--part", part, "--out", str(check.out)]
    return [*command, "--seconds", f"{seconds:.0f}", *(["--smoke"] if check.smoke else [])]


def _stopped(check: Check, part: str, why: str) -> None:
    check.say(part, why)
    check.wrong.append(part)
    check.records.write(part, "stopped", why=why)


def _end(process: subprocess.Popen[str]) -> None:
    """Stop the process and its children, with SIGTERM and then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            continue
    _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill child processes that are left. They may hold the GPU, or the pipe that is read here."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(kernels: Path) -> dict[str, str]:
    base: Mapping[str, str] = os.environ
    return {
        **_GROWING,
        **base,
        "TRITON_CACHE_DIR": str(kernels),
        "PYTHONUNBUFFERED": "1",
        # Nothing is downloaded, and nothing waits for network timeouts.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _summary(out: Path, wrong: Sequence[str]) -> list[str]:
    lines = []
    for run in read([out / "results.jsonl"]):
        failed = [entry["name"] for entry in run["entries"] if entry["passed"] is False]
        state = run["stopped"] or ("ended" if run["finished"] else "cut short")
        lines.append(
            f"{run['part']}: {state}, {len(run['entries'])} entries, {len(failed)} not as they should be"
        )
        lines += [f"  NOT {name}" for name in failed]
    return [*lines, f"results: {out}"]
