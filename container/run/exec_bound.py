"""`python exec_bound.py PARENT NICE COMMAND...`: become COMMAND, bound to the life of the process PARENT.

The kernel kills COMMAND when its parent ends, however it ends. Run as a script of its own because code between
fork and exec of a process with threads is not safe. Imports as little as possible: it runs before every child.
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
        sys.exit("the parent ended before the child began")
    if nice:
        os.nice(nice)
    os.execvp(command[0], command)  # noqa: S606  (a fixed list from container/run/launch.py)


if __name__ == "__main__":
    main()
