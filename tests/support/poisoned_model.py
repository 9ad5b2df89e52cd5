"""A copy of a model with two faulty tokens.

`NOT_A_NUMBER` has an embedding of NaN, so the output layer of the copy is no longer tied to the embeddings. `BEYOND` is
known to the tokenizer, but not to the model. Both pass every check of a request's body, and fail during computation.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

NOT_A_NUMBER = "<gh_stars>"
BEYOND = "<|beyond|>"


def poison(source: Path, target: Path) -> None:
    """Write the copy. Raises `StopIteration` if the model's tokenizer lacks the token `NOT_A_NUMBER`."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja"} and "index" not in path.name:
            shutil.copy(path, target)
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    token = next(t for t in tokenizer["added_tokens"] if t["content"] == NOT_A_NUMBER)
    weights = {
        name: tensor for path in source.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    embeddings = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embeddings.clone()
    embeddings[token["id"]] = torch.nan
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer["added_tokens"].append({**token, "id": embeddings.shape[0], "content": BEYOND})
    (target / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(
        json.dumps({**config, "tie_word_embeddings": False}), encoding="utf-8"
    )
