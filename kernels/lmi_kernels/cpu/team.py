"""A team of threads that runs programs of native operations."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import SECONDS, Op, OpKind, Step, Struct


class Program:
    """Operations in order, and what their structs point to."""

    def __init__(self, operations: Sequence[Struct], keeps: Sequence[object] = ()) -> None:
        """keeps: what must live as long as the program: weights, buffers."""
        self._keeps = (tuple(operations), tuple(keeps))
        self.num_ops = len(operations)
        self.ops = (Op * max(1, len(operations)))(
            *(Op(kind=each.KIND, what=ctypes.addressof(each)) for each in operations)
        )


class Team:
    """Threads that are started once. Only one program runs at a time."""

    def __init__(self, library: Library, num_threads: int) -> None:
        """num_threads: the caller's among them."""
        self.num_threads = num_threads
        self._library = library
        self._handle = library.team_new(num_threads)
        self._seconds = SECONDS()
        weakref.finalize(self, library.team_free, self._handle)

    def run(self, program: Program, step: Step) -> None:
        """Run a program over a step's rows."""
        self._library.run(self._handle, program.ops, program.num_ops, step, self._seconds)

    def seconds(self) -> dict[OpKind, float]:
        """The time of all programs so far by kind of operation."""
        return {kind: self._seconds[kind] for kind in OpKind}
