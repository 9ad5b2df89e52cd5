"""`python -m tests.gpu.check`: check the engine's results on a GPU, and measure its speed.

`--plan` prints the chapters, their parts and time limits. `--chapter N` runs one chapter (default: all, one after the
other), and `--part NAME` runs one part in this process. Results are appended to a file in the folder `--out`.
`tests.gpu.report` makes a page of them.

Requires torch, triton, transformers, numpy and safetensors, and the folders `.` and `kernels` on PYTHONPATH. `--smoke`
runs the code with tiny shapes, also on a CPU (TRITON_INTERPRET=1). Its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu.plan import CHAPTERS, PARTS, describe


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--plan", action="store_true", help="print chapters, parts and time limits, then exit")
    mode.add_argument("--chapter", type=int, choices=list(CHAPTERS), help="run one chapter; default: all")
    mode.add_argument("--part", choices=list(PARTS), help="run one part in this process")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="folder for the results")
    parser.add_argument(
        "--cache", type=Path, help="folder or archive of kernels that an earlier run compiled"
    )
    parser.add_argument("--seconds", type=float, help="time limit for --part; default: the limit in the plan")
    parser.add_argument("--smoke", action="store_true", help="run with tiny shapes, to test the code itself")
    arguments = parser.parse_args(argv)
    if arguments.plan:
        print("\n".join(describe()))
        return 0
    if arguments.part:
        from tests.gpu.one_part import run_part

        seconds = arguments.seconds or PARTS[arguments.part].seconds
        return run_part(arguments.part, arguments.out, seconds, smoke=arguments.smoke)
    from tests.gpu.chapters import run_chapters

    numbers = [arguments.chapter] if arguments.chapter else list(CHAPTERS)
    return run_chapters(numbers, arguments.out, arguments.cache, smoke=arguments.smoke)


if __name__ == "__main__":
    sys.exit(main())
