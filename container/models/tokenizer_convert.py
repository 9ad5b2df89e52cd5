"""Convert the tokenizer of a model folder to tokenizer.json and special_tokens_map.json, with transformers.

`python -m container.models.tokenizer_convert MODEL FOLDER`, run as a child process by
`container/models/tokenizer_files.py` to free its memory afterwards. Prints nothing on success, else a JSON object
`{"error": "..."}`. MODEL is only read, and no code in it is run.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from pathlib import Path

_SENTENCEPIECE = ("sentencepiece", "google.protobuf")


class NotConvertible(Exception):
    """The tokenizer cannot be converted to tokenizer.json. The message says why."""


def _require_packages(model: Path) -> None:
    """Check that the packages for sentencepiece are installed. transformers' error names a different package."""
    pieces = sorted(path.name for path in model.glob("*.model") if path.name != "tiktoken.model")
    if not pieces:
        return
    try:
        missing = [name for name in _SENTENCEPIECE if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = list(_SENTENCEPIECE)
    if missing:
        raise NotConvertible(
            f"reading {pieces[0]} requires packages that are not installed; run pip install sentencepiece protobuf"
        )


def read_ranks(file: str) -> dict[bytes, int]:
    """Read a tiktoken vocabulary: each line has a token in base64 and its rank.

    Replaces transformers' reader, which uses the package tiktoken. tiktoken caches what it reads in a temporary folder
    and looks it up by name alone.
    """
    lines = [line.split() for line in Path(file).read_bytes().splitlines() if line]
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}


def convert_tokenizer(model: Path, folder: Path) -> None:
    """Write tokenizer.json, and special_tokens_map.json with the tokens named like `bos_token`.

    folder: exists. Raises: NotConvertible, and whatever transformers raises.
    """
    _require_packages(model)
    from transformers import AutoTokenizer  # after the check, because it takes seconds
    from transformers.convert_slow_tokenizer import TikTokenConverter

    TikTokenConverter.load_tiktoken_bpe = staticmethod(read_ranks)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise NotConvertible(f"transformers has no fast version of {type(tokenizer).__name__}")
    backend.save(str(folder / "tokenizer.json"))
    # Includes the defaults of the tokenizer's class, which the model's files need not name.
    named = {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if name.endswith("_token")
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(named), encoding="utf-8")


def main(arguments: list[str]) -> int:
    model, folder = map(Path, arguments)
    # transformers works without torch, whose import would take most of the time.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        convert_tokenizer(model, folder)
    except Exception as error:  # transformers raises errors of every type
        text = " ".join(str(error).split()) or type(error).__name__
        print(json.dumps({"error": text}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
