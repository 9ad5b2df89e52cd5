"""Part `races`: run compute-sanitizer's racecheck on kernels whose threads share scratch memory."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.gpu.context import Context
from tests.gpu.one_kernel import command, run_in_process

_KERNELS = (
    "decode_attention",
    "varlen_attention",
    "plan_decode",
    "combine_parts",
    "truncate_logits",
    "choose_tokens",
    "token_logprobs",
    "route",
)
_SECONDS = 90.0
"""Time limit per kernel, for two examples. The sanitizer makes everything many times slower."""


def find_sanitizer() -> str:
    """Return the path of compute-sanitizer, or an empty string."""
    paths = [
        shutil.which("compute-sanitizer"),
        *map(str, sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))),
        *map(str, sorted(Path("/usr/local").glob("cuda*/compute-sanitizer/compute-sanitizer"))),
    ]
    return next((path for path in paths if path), "")


def run(context: Context) -> None:
    results, sanitizer = context.results, find_sanitizer()
    if not sanitizer or context.device.type != "cuda":
        results.missing("races in shared memory", "requires compute-sanitizer and a GPU")
        return
    # Use torch's default allocator: the tool might not support expandable segments.
    plain = ["env", "-u", "PYTORCH_ALLOC_CONF", "-u", "PYTORCH_CUDA_ALLOC_CONF"]
    tool = [*plain, sanitizer, "--tool", "racecheck", "--error-exitcode", "9"]
    with ThreadPoolExecutor(len(_KERNELS)) as pool:
        futures = {
            pool.submit(
                lambda name=name: run_in_process(
                    [*tool, *command(name, "bf16", "--examples", "2")], min(_SECONDS, context.deadline.left)
                )
            ): name
            for name in _KERNELS
        }
        for future in as_completed(futures):
            passed, text = future.result()
            name = f"{futures[future]}: races in shared memory"
            no_race = verdict(text)
            if no_race is None:
                results.missing(name, f"no race report: {text}")
            else:
                results.check(name, passed and no_race, text)


def verdict(line: str) -> bool | None:
    """Return whether the sanitizer's last line reports no race; None: the line is no race report."""
    match = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?", line)
    return None if match is None else int(match[2]) == 0
