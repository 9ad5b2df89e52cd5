"""Where a model's tokenizer.json is: in its folder, or, where that has another kind of tokenizer, made of it once.

A model with random weights needs no tokenizer; where it has none, one of single bytes is made.

The web process reads tokenizer.json and nothing else. What is made lies in the cache, under a name that is the content
of what it was made of; the model's folder is only read. Imports no transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from container.models import byte_tokenizer
from container.models.files.base import ModelNotAvailable
from container.models.publish import lacking_space, locked, publish
from container.progress import ProgressView

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


def _has_one(model: Path) -> bool:
    return (model / TOKENIZER).is_file() or _kind(model) is not None


def note(model: Path, load_format: str) -> str | None:
    """What is to be said of the tokenizer of a folder that has none; None when there is nothing to say."""
    if load_format != "dummy" or _has_one(model):
        return None
    return (
        f"{model} has no tokenizer, so texts are read as bytes: one token for each, and ids that stand for no byte show"
        " as their numbers, as in <300>"
    )


def refusal(model: Path, load_format: str = "auto") -> str | None:
    """Why this folder has no tokenizer that can be used, as far as the names tell: one sentence; else None."""
    if _has_one(model):
        return None
    if load_format == "dummy":
        try:
            byte_tokenizer.read_vocabulary(model)
        except ValueError as error:
            return f"the model folder {model} has no tokenizer, and none can be made: {error}"
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


def obtain(
    model: Path, cache: Path, environ: Mapping[str, str], view: ProgressView, load_format: str = "auto"
) -> Path:
    """The folder whose tokenizer.json belongs to the model in the folder `model`: that one, if it has such a file.

    environ: what the converting process sees; load_format: `dummy` does without a tokenizer of the model's own.
    Raises: ModelNotAvailable, one sentence.
    """
    if (model / TOKENIZER).is_file():
        return model
    if sentence := refusal(model, load_format):
        raise ModelNotAvailable(sentence)
    folder = cache / "tokenizers"
    try:
        if _has_one(model):
            what = f"converting the tokenizer of {model}"
            return _made(
                folder, _key(model), what, _kind(model), view, lambda part: _convert(model, part, environ)
            )
        made = _of_bytes(model, folder, view)
        view.say(f"note: {note(model, load_format)} ({made / TOKENIZER})")
        return made
    except OSError as error:
        why = error.strerror or str(error)
        raise ModelNotAvailable(
            f"cannot convert the tokenizer of {model} into the cache {cache} ({why}); LMI_CACHE_DIR names another"
        ) from error


def _of_bytes(model: Path, folder: Path, view: ProgressView) -> Path:
    vocabulary = byte_tokenizer.read_vocabulary(model)
    key = hashlib.sha256(f"bytes {_VERSION} {vocabulary}".encode()).hexdigest()[:24]
    what = f"making a tokenizer of bytes for {model}"
    return _made(
        folder,
        key,
        what,
        f"{vocabulary.size} entries",
        view,
        lambda part: byte_tokenizer.save(vocabulary, part / TOKENIZER),
    )


def _made(
    folder: Path,
    key: str,
    what: str,
    detail: str | None,
    view: ProgressView,
    make: Callable[[Path], None],
) -> Path:
    """The folder `key` in `folder`, filled by `make` where it is not there yet."""
    target = folder / key
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{key}.lock", what, view):
        if target.is_dir():
            return target
        for left_over in folder.glob(f".{key}.part-*"):
            shutil.rmtree(left_over)
        if lack := lacking_space(folder, _NEEDED_BYTES, what):
            raise ModelNotAvailable(lack)
        part = Path(tempfile.mkdtemp(prefix=f".{key}.part-", dir=folder))
        try:
            view.start(f"{what} ({detail}), once")
            make(part)
            publish(part, target)
        finally:
            view.finish()
            shutil.rmtree(part, ignore_errors=True)
    return target


def _convert(model: Path, part: Path, environ: Mapping[str, str]) -> None:
    """Run the conversion in a process of its own. Raises: ModelNotAvailable."""
    command = [sys.executable, "-m", "container.models.tokenizer_convert", str(model), str(part)]
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
