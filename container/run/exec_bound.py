"""`python exec_bound.py PARENT NICE COMMAND...`: run COMMAND, and have the kernel kill it when the process PARENT ends.

A separate script, because code between fork and exec is not safe in a process with threads. Imports as little as
possible, because it runs before every child process.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, nice, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process exited before the child started")
    if nice:
        os.nice(nice)
    os.execvp(command[0], command)  # noqa: S606  (a fixed list from container/run/launch.py)


if __name__ == "__main__":
    main()
