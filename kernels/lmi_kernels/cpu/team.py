"""Thread team that runs programs of native operations."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Sequence

import torch

from lmi_kernels.cpu.library import Library, load
from lmi_kernels.cpu.structs import SECONDS, Op, OpKind, Step, Storage, Struct, address


class Program:
    """Operations in order, and the objects that their structs point to."""

    def __init__(
        self, operations: Sequence[Struct], keep_alive: Sequence[object] = (), at_places: Sequence[bool] = ()
    ) -> None:
        """
        keep_alive: weights and buffers that must live as long as the program.
        at_places: for each operation, whether it computes the rows at the step's places instead of all rows. Empty:
            none does.
        """
        self._keep_alive = (tuple(operations), tuple(keep_alive))
        self.num_ops = len(operations)
        self.ops = (Op * max(1, len(operations)))(
            *(
                Op(kind=each.KIND, at_places=selected, what=ctypes.addressof(each))
                for each, selected in zip(operations, at_places or [False] * len(operations), strict=True)
            )
        )


class Team:
    """Threads that are started once and run one program after the other. `run` is thread-safe."""

    def __init__(self, library: Library, num_threads: int) -> None:
        """num_threads: number of threads, including the caller's. Raises RuntimeError if they cannot be started."""
        self.num_threads = num_threads
        self.library = library
        self._handle = library.team_new(num_threads)
        if not self._handle:
            raise RuntimeError(
                f"the system refuses to start {num_threads} threads; raise the limit of processes (docker run"
                " --pids-limit, ulimit -u), or set OMP_NUM_THREADS"
            )
        self._lock = threading.Lock()
        self._seconds = SECONDS()
        self._scratch: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._alive_at: ctypes.c_double | None = None
        weakref.finalize(self, library.team_free, self._handle)

    def show_alive_at(self, place: ctypes.c_double) -> None:
        """Let the team write a heartbeat to `place` while it works: seconds of CLOCK_MONOTONIC."""
        self._alive_at = place
        self.library.team_show_alive_at(self._handle, place)

    def run(self, program: Program, step: Step) -> None:
        """Run a program over a step's rows."""
        with self._lock:
            self.library.run(self._handle, program.ops, program.num_ops, step, self._seconds)

    def fill_weight(
        self,
        handle: int,
        blocks: Sequence[torch.Tensor],
        storage: Storage,
        bias: torch.Tensor | None,
        norms: torch.Tensor | None,
        gated: bool,
    ) -> bool:
        """Fill a native weight. Returns False if out of memory.

        Args:
            handle: the weight.
            blocks: matrices that have [num_rows, in_features] if stacked.
            storage: of the blocks; the weight's own unless that is int8.
            bias: [num_rows], fp32; None: no bias.
            norms: for int8, [2, num_rows], fp32, or None: overwritten, see `NativeWeight`.
            gated: the first half of the rows are the gates of the second half.
        """
        rows = [each.contiguous() for each in blocks]
        sizes = [len(each) for each in rows]
        memory = (ctypes.c_void_p * len(rows))(*[each.data_ptr() for each in rows])
        bias = None if bias is None else bias.contiguous()
        with self._lock:
            filled: bool = self.library.weight_pack(
                self._handle,
                handle,
                memory,
                (ctypes.c_int64 * len(rows))(*sizes),
                storage,
                address(bias),
                address(norms),
                sum(sizes),
                gated,
            )
        return filled

    def attention_scratch_bytes(self, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
        """Return the size of `Attention.scratch` in bytes."""
        sizes = self.num_threads, num_heads, num_kv_heads, head_dim
        count: int = self.library.attention_scratch_bytes(*sizes)
        return count

    def scratch(self, field: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the scratch buffer for a field of operations, at least [size]. Operations outside of recorded programs
        share it, because they run one after the other."""
        buffer = self._scratch.get((field, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self._scratch[field, dtype] = torch.empty(size, dtype=dtype)
        return buffer

    def seconds(self, kinds: Iterable[OpKind]) -> float:
        """Return the seconds spent in operations of these kinds so far."""
        return sum([self._seconds[kind] for kind in kinds])


_team: Team | None = None
_num_threads: int | None = None


def set_num_threads(count: int, native: bool = True) -> None:
    """Set the number of threads for this process, including the caller's.

    Either native kernels or torch get them; the other one gets one thread. Two thread pools that spin while they wait
    would slow each other down.

    native: whether native kernels get the threads, if there are any; False: torch computes the model.

    Raises:
        ValueError: `LMI_CPU_KERNELS` cannot be applied, see `load`.
    """
    global _num_threads
    native = load() is not None and native
    _num_threads = count if native else 1
    torch.set_num_threads(1 if native else count)


def shared_team() -> Team | None:
    """Return the process's team, which is started on first use. Return None if there are no native kernels."""
    global _team
    library = load()
    count = _num_threads or torch.get_num_threads()
    if library is not None and (_team is None or _team.num_threads != count):
        _team = Team(library, count)
    return _team if library is not None else None
