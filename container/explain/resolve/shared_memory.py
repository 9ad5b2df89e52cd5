"""What a run takes of /dev/shm: its own files, and the segments through which MPI's ranks talk."""

from __future__ import annotations

from container.machine import Machine
from container.run.launch import SEGMENT_BYTES

_MIB = 1 << 20
_OWN_FILES = 4 * _MIB
"""Status board, metrics of several web workers, configurations; about a quarter of it is used."""
_RANK_FILES = _MIB
"""What mpirun notes of each rank."""
_DOCKER_STEP = 64 * _MIB


def needed_bytes(ranks: int) -> int:
    """Bytes that a run of so many ranks may come to take. A lone rank has no segment."""
    return _OWN_FILES + (ranks * (SEGMENT_BYTES + _RANK_FILES) if ranks > 1 else 0)


def shortage(ranks: int, machine: Machine) -> str | None:
    """Why the run's files do not fit into /dev/shm, with the size that would do; None where they fit.

    Segments grow as they are used: ranks that start may be killed by SIGBUS much later.
    """
    free, needed = machine.shared_memory_bytes, needed_bytes(ranks)
    if free is None or free >= needed:
        return None
    size = -(-needed // _DOCKER_STEP) * _DOCKER_STEP
    whose = f"{ranks} ranks need" if ranks > 1 else "a run needs"
    return (
        f"shared memory is too small: {whose} {needed / _MIB:.0f} MiB in /dev/shm, and {free / _MIB:.0f} MiB are free;"
        f" docker gives 64 MiB unless told otherwise: docker run --shm-size={size // _MIB}m"
    )
