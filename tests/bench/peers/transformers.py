"""transformers in the version that this project uses: static batches, and its own continuous batching."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from pathlib import Path

from tests.bench.contender import Contender, Facts
from tests.bench.environment import environ
from tests.bench.in_process import InProcess
from tests.bench.peers.peer import MAX_SEQUENCES, Peer, Site

_PAGE = 32
_BLOCKS = 512
_STEP_TOKENS = 512


def _facts(kv_cache: str, notes: str = "") -> Facts:
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    return Facts("fp32", kv_cache, "in process", 4.0, notes=notes, versions=versions)


def _static(batch: int, site: Site) -> Contender:
    return InProcess(
        name=f"transformers-static-{batch}",
        facts=_facts("fp32, grows with the batch", "responses return when the longest of the batch is done"),
        python=Path(sys.executable),
        runner="transformers_static.py",
        settings={"model": str(site.model), "batch": batch},
        environ=environ(),
    )


def _continuous(site: Site) -> Contender:
    return InProcess(
        name="transformers-continuous",
        facts=_facts(f"fp32, {_BLOCKS} pages of {_PAGE}", f"at most {_STEP_TOKENS} tokens a step"),
        python=Path(sys.executable),
        runner="transformers_continuous.py",
        settings={
            "model": str(site.model),
            "batch": MAX_SEQUENCES,
            "page": _PAGE,
            "blocks": _BLOCKS,
            "step_tokens": _STEP_TOKENS,
        },
        environ=environ(),
    )


PEERS = (
    Peer("transformers-static-4", "transformers", functools.partial(_static, 4)),
    Peer("transformers-static-32", "transformers", functools.partial(_static, 32)),
    Peer("transformers-continuous", "transformers", _continuous),
)
