"""Small folders that look like models: random weights in safetensors, written without torch."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

_ROW = 1024


def safetensors_bytes(names: list[str], num_bytes: int, seed: int = 0) -> bytes:
    """A safetensors file with these BF16 tensors and about `num_bytes` of random data in total."""
    rows = max(1, num_bytes // len(names) // (2 * _ROW))
    size = rows * _ROW * 2
    header = {
        name: {"dtype": "BF16", "shape": [rows, _ROW], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(size * len(names))


def write_model(folder: Path, num_bytes: int, *, seed: int = 0, shards: int = 1) -> Path:
    """Write a model of `num_bytes` in one file, or in `shards` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "seed": seed}))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    (folder / "README.md").write_text("is not needed")
    (folder / "model.py").write_text("print('code')\n")
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(["a", "b", "c"], num_bytes, seed))
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        (folder / name).write_bytes(safetensors_bytes([f"t{number}"], num_bytes // shards, seed + number))
        weight_map[f"t{number}"] = name
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
