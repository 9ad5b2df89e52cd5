"""Files of small models, and `lmi prepare` with a hub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tests.support.paths import REPO_ROOT, child_environment

EMPTY_SAFETENSORS = b"\x02" + bytes(7) + b"{}"
"""A complete file without tensors."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4096\n"
"""What a clone without Git LFS has in place of a large file."""

NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}


def weights(seed: int = 0, size_bytes: int = 1 << 20) -> bytes:
    """A safetensors file of about this size."""
    numbers = np.random.default_rng(seed).standard_normal(size_bytes // 4).astype(np.float32)
    return save({"weight": numbers})


def model(seed: int = 0, size_bytes: int = 1 << 20, **more: bytes) -> dict[str, bytes]:
    """The files that serving needs, and `more`."""
    files = {"config.json": b'{"seed": %d}' % seed, "tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}
    return {**files, "model.safetensors": weights(seed, size_bytes), **more}


def start_prepare(
    model_id: str, cache: Path, endpoint: str, *, patient: bool = False, **environment: str
) -> subprocess.Popen[str]:
    """Start `lmi prepare` with its own HF_HOME. patient: with longer time limits."""
    extra: Mapping[str, str] = {
        **NO_PROXY,
        "HF_ENDPOINT": endpoint,
        "LMI_CACHE_DIR": str(cache),
        "HF_HOME": str(cache.parent / "hf_home"),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.patient_lmi" if patient else "container", "prepare", model_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cache.parent,
        env=child_environment(extra) | {"PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'kernels'}"},
    )


def prepare(
    model_id: str, cache: Path, endpoint: str, *, patient: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `lmi prepare` as `start_prepare` does, and wait for it."""
    process = start_prepare(model_id, cache, endpoint, patient=patient, **environment)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def content(folder: Path) -> dict[str, bytes]:
    """Contents of all files in a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
