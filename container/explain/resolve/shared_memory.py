"""Shared memory that a run needs in /dev/shm: its own files, and the segments of the MPI ranks."""

from __future__ import annotations

from container.machine import Machine
from container.run.launch import SEGMENT_BYTES

_MIB = 1 << 20
_OWN_FILES = 4 * _MIB
"""Room for status board, metrics of several web workers and configurations. About a quarter of it is used."""
_RANK_FILES = _MIB
"""Room for mpirun's files of each rank."""
_DOCKER_STEP = 64 * _MIB


def needed_bytes(ranks: int, copies: int = 1) -> int:
    """Return the maximum bytes that a run takes. ranks: per copy; a single rank has no segment."""
    return _OWN_FILES + (copies * ranks * (SEGMENT_BYTES + _RANK_FILES) if ranks > 1 else 0)


def shortage(ranks: int, machine: Machine, copies: int = 1) -> str | None:
    """Return why a run does not fit into /dev/shm, with a sufficient size, or None if it fits.

    Segments grow as they are used, so ranks that start could be killed by SIGBUS much later.
    """
    free, needed = machine.shared_memory_bytes, needed_bytes(ranks, copies)
    if free is None or free >= needed:
        return None
    size = -(-needed // _DOCKER_STEP) * _DOCKER_STEP
    whose = f"{copies * ranks} ranks need" if ranks > 1 else "the server needs"
    return (
        f"shared memory is too small: {whose} {needed / _MIB:.0f} MiB in /dev/shm, but {free / _MIB:.0f} MiB are free;"
        f" Docker's default is 64 MiB; set docker run --shm-size={size // _MIB}m"
    )
