"""`python -m tests.gpu.one_kernel NAME DTYPE`: check one operation's Triton kernel against its reference on the GPU, in
a process of its own, because an access out of bounds breaks all further work of a process on the device. Prints the
number of examples."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import torch

from tests.kernels.references.check import all_checks
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

_SLOWEST_TO_COMPILE = (
    "varlen_attention",
    "decode_attention",
    "truncate_logits",
    "experts",
    "choose_tokens",
)
"""Operations that take longest to compile."""


def operations() -> list[str]:
    """Return all operations, starting with those that take longest to compile."""
    others = [check.name for check in all_checks() if check.name not in _SLOWEST_TO_COMPILE]
    return [*_SLOWEST_TO_COMPILE, *others]


def command(name: str, dtype: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "tests.gpu.one_kernel", name, dtype, *options]


def run_in_process(arguments: Sequence[str], seconds: float) -> tuple[bool, str]:
    """Return whether the process succeeded, and the last line of its output."""
    # Not a pipe: child processes may hold a pipe open after the process is killed.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            code = subprocess.run(
                arguments, stdout=output, stderr=subprocess.STDOUT, timeout=max(1.0, seconds), check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return False, f"timed out after {seconds:.0f} s"
        output.seek(0)
        text = output.read()
    if code:
        print(text, flush=True)
    lines = [line for line in text.splitlines() if line.strip()]
    return code == 0, lines[-1][:300] if lines else f"exit code {code}, no output"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("dtype", choices=list(DTYPES))
    parser.add_argument("--examples", type=int, metavar="N", help="check only the first N; default: all")
    arguments = parser.parse_args()
    (check,) = (check for check in all_checks() if check.name == arguments.name)
    if arguments.examples:
        all_examples, count = check.examples, arguments.examples
        check = dataclasses.replace(
            check, examples=lambda generator, dtype: itertools.islice(all_examples(generator, dtype), count)
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{check_parity(check, DTYPES[arguments.dtype], fresh_generator(), device)} examples")
    return 0


if __name__ == "__main__":
    sys.exit(main())
