"""Paths, and the environment of child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[2]
BUNDLED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

_CONFIGURING_PREFIXES = ("OPTION_", "SERVING_", "SAGEMAKER_", "ARGS_", "OMPI_", "PMIX_", "PRTE_")
_CONFIGURING_NAMES = {
    "HF_MODEL_ID",
    "HF_REVISION",
    "HF_TASK",
    "TENSOR_PARALLEL_DEGREE",
    "PIPELINE_PARALLEL_DEGREE",
    "PREDICT_TIMEOUT",
    "MODEL_LOADING_TIMEOUT",
}


def cache_dir() -> Path:
    """The folder in which the server keeps prepared models."""
    if value := os.environ.get("LMI_CACHE_DIR"):
        return Path(value)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lmi"


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without variables that configure a server, plus `extra`."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_CONFIGURING_PREFIXES) and name not in _CONFIGURING_NAMES
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(REPO_ROOT), str(REPO_ROOT / "kernels")])
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(extra or {})
    return environment


def prepare_bundled_model() -> Path:
    """Return the folder of the bundled model, prepared on first use. `LMI_TEST_MODEL` overrides it.

    Raises `subprocess.CalledProcessError` if preparation fails. The output shows the cause.
    """
    if value := os.environ.get("LMI_TEST_MODEL"):
        return Path(value)
    done = subprocess.run(
        [sys.executable, "-m", "container", "prepare", BUNDLED_MODEL],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=REPO_ROOT,
        env=child_environment(),
    )
    return Path(done.stdout.strip().splitlines()[-1])
