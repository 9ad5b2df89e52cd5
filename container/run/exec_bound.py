"""`python exec_bound.py PARENT NICE BLOCKED COMMAND...`: run COMMAND, and have the kernel kill it when PARENT ends.

PARENT is a process id; BLOCKED is the number of a signal that COMMAND never gets, or 0.

A separate script, because code between fork and exec is not safe in a process with threads. Imports as little as
possible, because it runs before every child process.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, nice, blocked = map(int, sys.argv[1:4])
    command = sys.argv[4:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process exited before the child started")
    if nice:
        os.nice(nice)
    if blocked:
        signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    os.execvp(command[0], command)  # noqa: S606  (a fixed list from container/run/launch.py)


if __name__ == "__main__":
    main()
