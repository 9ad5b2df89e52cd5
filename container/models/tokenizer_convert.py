"""Convert the tokenizer of a model folder to tokenizer.json and special_tokens_map.json, with transformers.

`python -m container.models.tokenizer_convert MODEL FOLDER`, run as a child process by
`container/models/tokenizer_files.py` to free its memory afterwards. If it fails, the last line on stderr is the error,
and the exit code is 1. MODEL is only read, and no code in it is run.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path


def read_ranks(file: str) -> dict[bytes, int]:
    """Read a tiktoken vocabulary: each line has a token in base64 and its rank.

    Replaces transformers' reader, which uses the package tiktoken. tiktoken caches what it reads in a temporary folder
    and looks it up by name alone.
    """
    lines = [line.split() for line in Path(file).read_bytes().splitlines() if line]
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}


def convert_tokenizer(model: Path, folder: Path) -> None:
    """Write tokenizer.json, and special_tokens_map.json with the tokens named like `bos_token`.

    folder: exists. Raises: ValueError, and whatever transformers raises.
    """
    from transformers import AutoTokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter

    TikTokenConverter.load_tiktoken_bpe = staticmethod(read_ranks)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"transformers has no fast version of {type(tokenizer).__name__}")
    backend.save(str(folder / "tokenizer.json"))
    # Includes the defaults of the tokenizer's class, which the model's files need not name.
    named = {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if name.endswith("_token")
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(named), encoding="utf-8")


def main(arguments: list[str]) -> str | None:
    """Return the error, if there is one, in one line."""
    model, folder = map(Path, arguments)
    # transformers works without torch, whose import would take most of the time.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        convert_tokenizer(model, folder)
    except Exception as error:  # transformers raises errors of every type
        return " ".join(str(error).split()) or type(error).__name__
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
