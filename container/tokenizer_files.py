"""Where a model's tokenizer.json is: in its folder, or, where that has another kind of tokenizer, made of it once.

The web process reads tokenizer.json and nothing else. What is made lies in the cache, under a name that is the content
of the files that it was made of; the model's folder is only read. Imports no transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.model_files.base import ModelNotAvailable
from container.progress import ProgressView
from container.publish import lacking_space, locked, publish

TOKENIZER = "tokenizer.json"
_VERSION = "1"
"""Of the conversion: a changed one does not take an old one's result."""
_SECONDS = 300.0
_MAX_ERROR = 400
_NEEDED_BYTES = 128 << 20
_READ = ("*.json", "*.model", "*.txt", "*.tiktoken")
_NOT_READ = {"generation_config.json", "model.safetensors.index.json"}


def _kind(model: Path) -> str | None:
    """What the folder has instead of tokenizer.json; None when there is nothing of the kind."""
    if (model / "vocab.json").is_file() and (model / "merges.txt").is_file():
        return "vocab.json and merges.txt"
    for name in ("vocab.txt", "tekken.json"):
        if (model / name).is_file():
            return name
    return next((path.name for pattern in _READ[1::2] for path in sorted(model.glob(pattern))), None)


def refusal(model: Path) -> str | None:
    """Why this folder has no tokenizer that can be used, as far as the names tell: one sentence; else None."""
    if (model / TOKENIZER).is_file() or _kind(model) is not None:
        return None
    return (
        f"the model folder {model} has no tokenizer: neither {TOKENIZER} nor tokenizer.model, spiece.model, vocab.txt, "
        "or vocab.json with merges.txt"
    )


def _key(model: Path) -> str:
    """Names everything that the result depends on."""
    digest = hashlib.sha256(f"{_VERSION} {importlib.metadata.version('transformers')}".encode())
    files = {path for pattern in _READ for path in model.glob(pattern) if path.name not in _NOT_READ}
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:24]


def obtain(model: Path, cache: Path, environ: Mapping[str, str], view: ProgressView) -> Path:
    """The folder whose tokenizer.json belongs to the model in the folder `model`: that one, if it has such a file.

    environ: what the converting process sees. Raises: ModelNotAvailable, one sentence.
    """
    if (model / TOKENIZER).is_file():
        return model
    if sentence := refusal(model):
        raise ModelNotAvailable(sentence)
    try:
        return _converted(model, cache / "tokenizers", environ, view)
    except OSError as error:
        why = error.strerror or str(error)
        raise ModelNotAvailable(
            f"cannot convert the tokenizer of {model} into the cache {cache} ({why}); LMI_CACHE_DIR names another"
        ) from error


def _converted(model: Path, folder: Path, environ: Mapping[str, str], view: ProgressView) -> Path:
    key = _key(model)
    target = folder / key
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    what = f"converting the tokenizer of {model}"
    with locked(folder / f".{key}.lock", what, view):
        if target.is_dir():
            return target
        for left_over in folder.glob(f".{key}.part-*"):
            shutil.rmtree(left_over)
        if lack := lacking_space(folder, _NEEDED_BYTES, what):
            raise ModelNotAvailable(lack)
        part = Path(tempfile.mkdtemp(prefix=f".{key}.part-", dir=folder))
        try:
            view.start(f"{what} ({_kind(model)}), once")
            _convert(model, part, environ)
            publish(part, target)
        finally:
            view.finish()
            shutil.rmtree(part, ignore_errors=True)
    return target


def _convert(model: Path, part: Path, environ: Mapping[str, str]) -> None:
    """Run the conversion in a process of its own. Raises: ModelNotAvailable."""
    command = [sys.executable, "-m", "container.tokenizer_convert", str(model), str(part)]
    env = {**environ, "HF_HUB_OFFLINE": "1"}  # all that it needs is here
    failed = f"the tokenizer of {model} ({_kind(model)}) cannot be converted"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=_SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise ModelNotAvailable(f"{failed}: it was not done after {_SECONDS:.0f} s") from error
    if done.returncode != 0 or not (part / TOKENIZER).is_file():
        why = _told(done.stdout) or f"the converting process ended with exit code {done.returncode}"
        raise ModelNotAvailable(f"{failed}: {why}; a {TOKENIZER} in the model's folder makes it unnecessary")


def _told(output: str) -> str:
    """The error that the process has told; empty when it has told none."""
    try:
        told: Any = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return ""
    text = told.get("error") if isinstance(told, dict) else None
    return text[:_MAX_ERROR].rstrip(".") if isinstance(text, str) else ""
