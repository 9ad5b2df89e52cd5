"""Find the tokenizer.json of a model, or have transformers write one, once.

transformers writes one if the model has none, or if the model names a tokenizer class that builds its tokenizer anew
instead of loading tokenizer.json. Token ids would differ otherwise (`LlamaTokenizer` leaves out spaces after special
tokens). A model with random weights needs no tokenizer and gets one of single bytes. The web process reads
tokenizer.json, and beside a converted one special_tokens_map.json. Converted tokenizers are in the cache, named by a
hash of their sources. The model's folder is only read. Imports no transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from container.models import byte_tokenizer
from container.models.conversion import ConversionFailed, convert
from container.models.errors import ModelNotAvailable
from container.models.publish import make_folder
from container.progress import ProgressView
from engines.git_lfs import pointer_problem
from lmi_server.text.json_file import read_json

TOKENIZER = "tokenizer.json"
_VERSION = "3"
"""Version of the conversion. A new version does not use old results."""
_NEEDED_BYTES = 128 << 20
_SOURCES = ("*.json", "*.model", "*.txt", "*.tiktoken")
_NOT_SOURCES = {"generation_config.json", "model.safetensors.index.json"}
_UNCHANGED_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend", "BloomTokenizer", "GPT2Tokenizer"}
"""Tokenizer classes, without the suffix `Fast`, whose tokenizer.json is used unchanged.

transformers loads it unchanged, except for GPT2Tokenizer: version 5 replaces the file's pre-tokenizer by GPT-2's, with
which models such as SmolLM2 and StarCoder2 were not trained.
"""


def _kind(model: Path) -> str | None:
    """Return the name of the tokenizer's file or files in the folder; None without a tokenizer."""
    if (model / TOKENIZER).is_file():
        return TOKENIZER
    if (model / "vocab.json").is_file() and (model / "merges.txt").is_file():
        return "vocab.json and merges.txt"
    for name in ("vocab.txt", "tekken.json"):
        if (model / name).is_file():
            return name
    return next((path.name for pattern in _SOURCES[1::2] for path in sorted(model.glob(pattern))), None)


def loads_unchanged(model: Path) -> bool:
    """Return whether the folder has a tokenizer.json that is used unchanged."""
    if not (model / TOKENIZER).is_file():
        return False
    for name in ("tokenizer_config.json", "config.json"):
        try:
            named = read_json(model / name).get("tokenizer_class")
        except ValueError:  # reported by the code that needs the file
            continue
        if isinstance(named, str):
            return named.removesuffix("Fast") in _UNCHANGED_CLASSES
    return True


def note(model: Path, load_format: str) -> str | None:
    """Return a note for users if a folder without a tokenizer is served with random weights; else None."""
    if load_format != "dummy" or _kind(model) is not None:
        return None
    return (
        f"{model} has no tokenizer; using a byte-level tokenizer (one token per byte). Other token ids are shown as"
        " numbers, for example <300>"
    )


def refusal(model: Path, load_format: str = "auto") -> str | None:
    """Return one sentence if the folder has no tokenizer, or only a Git LFS pointer to it; else None."""
    if (kind := _kind(model)) is not None:
        return pointer_problem(model / kind) or None
    if load_format == "dummy":
        try:
            byte_tokenizer.read_vocabulary(model)
        except ValueError as error:
            return (
                f"the model folder {model} has no tokenizer, and a byte-level one cannot be created: {error}"
            )
        return None
    return (
        f"the model folder {model} has no tokenizer; expected {TOKENIZER}, tokenizer.model, spiece.model, tekken.json, "
        "vocab.txt, or vocab.json with merges.txt"
    )


def _key(model: Path) -> str:
    """Return a hash of everything that the converted tokenizer depends on."""
    digest = hashlib.sha256(f"{_VERSION} {importlib.metadata.version('transformers')}".encode())
    files = {path for pattern in _SOURCES for path in model.glob(pattern) if path.name not in _NOT_SOURCES}
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:24]


def obtain(
    model: Path, cache: Path, environ: Mapping[str, str], view: ProgressView, load_format: str = "auto"
) -> Path:
    """Return the folder with the model's tokenizer.json: the model's own if it is used unchanged.

    environ: environment of the converting process; load_format: with `dummy` the model needs no tokenizer.
    Raises: ModelNotAvailable, one sentence.
    """
    if sentence := refusal(model, load_format):
        raise ModelNotAvailable(sentence)
    if loads_unchanged(model):
        return model
    if (model / TOKENIZER).is_file():
        try:
            return _make(model, cache, environ, view)
        except ModelNotAvailable as error:
            view.say(f"note: {error}; using {TOKENIZER} unconverted")
            return model
    folder = _make(model, cache, environ, view)
    if text := note(model, load_format):
        view.say(f"note: {text} ({folder / TOKENIZER})")
    return folder


def _make(model: Path, cache: Path, environ: Mapping[str, str], view: ProgressView) -> Path:
    """Write the converted tokenizer, or a byte tokenizer, to the cache. Raises: ModelNotAvailable."""
    if (kind := _kind(model)) is not None:
        key, what, detail = _key(model), f"converting the tokenizer of {model}", kind
    else:
        vocabulary = byte_tokenizer.read_vocabulary(model)
        key = hashlib.sha256(f"bytes {_VERSION} {vocabulary}".encode()).hexdigest()[:24]
        what, detail = f"creating a byte-level tokenizer for {model}", f"{vocabulary.size} entries"

    def make(part: Path) -> None:
        if kind is not None:
            _convert(model, part, environ)
        else:
            byte_tokenizer.save(vocabulary, part / TOKENIZER)

    target, detail = cache / "tokenizers" / key, f" ({detail}, cached for later starts)"
    return make_folder(target, what, _NEEDED_BYTES, view, make, detail)


def _convert(model: Path, part: Path, environ: Mapping[str, str]) -> None:
    """Run the conversion in a child process. Raises: ModelNotAvailable."""
    env = {**environ, "HF_HUB_OFFLINE": "1"}  # the conversion needs no network
    try:
        convert("container.models.tokenizer_convert", model, part, env)
    except ConversionFailed as error:
        kind = _kind(model)
        advice = "" if kind == TOKENIZER else f"; put a {TOKENIZER} into the model's folder"
        why = str(error).rstrip(".")
        raise ModelNotAvailable(
            f"the tokenizer of {model} ({kind}) cannot be converted: {why}{advice}"
        ) from error
