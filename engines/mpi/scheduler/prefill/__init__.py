"""How prompts share steps with running sequences: one file a way, by `option.enable_chunked_prefill`."""

from __future__ import annotations

from engines.mpi.scheduler.prefill.base import PrefillMode
from engines.mpi.scheduler.prefill.overlay import Overlay
from engines.mpi.scheduler.prefill.pause import Pause


def make_prefill_mode(chunked: bool) -> PrefillMode:
    return Overlay() if chunked else Pause()
