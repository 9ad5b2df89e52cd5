"""A model folder without tokenizer.json -> tokenizer.json, by transformers.

`python -m container.models.tokenizer_convert MODEL FOLDER`, run as a child process by
`container/models/tokenizer_files.py`: what transformers loads is gone from memory afterwards. Says nothing on stdout
when it has worked, else why not, as one JSON object `{"error": "..."}`; only reads MODEL, and runs no code that lies
there.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

_SENTENCEPIECE = ("sentencepiece", "google.protobuf")


class NotConvertible(Exception):
    """The tokenizer cannot become a tokenizer.json. The text says why."""


def _require_packages(model: Path) -> None:
    """transformers' own error for a missing package speaks of another one."""
    pieces = sorted(path.name for path in model.glob("*.model") if path.name != "tiktoken.model")
    if not pieces:
        return
    try:
        missing = [name for name in _SENTENCEPIECE if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(_SENTENCEPIECE)
    if missing:
        raise NotConvertible(
            f"reading {pieces[0]} needs two packages that are not installed: pip install sentencepiece protobuf"
        )


def convert(model: Path, folder: Path) -> None:
    """Write tokenizer.json into the existing `folder`. Raises: NotConvertible, and whatever transformers raises."""
    _require_packages(model)
    from transformers import AutoTokenizer  # after the check: takes seconds

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise NotConvertible(f"transformers knows {type(tokenizer).__name__} only in its slow form")
    backend.save(str(folder / "tokenizer.json"))


def main(arguments: list[str]) -> int:
    model, folder = map(Path, arguments)
    try:
        convert(model, folder)
    except Exception as error:  # the edge of the process, and transformers' errors are of every kind
        text = " ".join(str(error).split()) or type(error).__name__
        print(json.dumps({"error": text}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
