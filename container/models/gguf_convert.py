"""Convert a GGUF file of the Llama family to a model folder: bf16 safetensors, config.json, tokenizer, chat template.

`python -m container.models.gguf_convert FILE FOLDER`, run as a child process by `container/models/files/bundled.py`.
Requires numpy, gguf and tokenizers, but neither torch nor transformers. Reports progress on stdout, one JSON object
`{"done": n, "total": m}` per line.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from container.models.gguf_config import Metadata, UnknownGguf, read_config
from container.models.gguf_describe import run, write_json, write_texts

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def weight_name(name: str) -> str:
    """Return the name of GGUF's tensor `name` in a Hugging Face Llama checkpoint. Raises UnknownGguf."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[part]}.weight"
    raise UnknownGguf(f"the GGUF file has a tensor '{name}', which a Llama model does not have")


def unpermute(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's order of q and k rows. Rotary pairs are adjacent in GGUF and split into two halves in checkpoints.

    weight: [num_heads * head_dim, hidden_size].
    """
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bf16 bit patterns of finite values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_weights(
    tensors: Sequence[Any], heads: dict[str, int], path: Path, report: Callable[[int], None]
) -> None:
    """Write the tensors as bf16 safetensors, with only one of them in memory at a time.

    heads: number of heads of each weight whose rows are in GGUF's rotary order.
    File format: length of the header (u64, little-endian), header (JSON, padded to 8 bytes), data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + 2 * int(tensor.n_elements)
        shape = [int(size) for size in reversed(tensor.shape)]
        header[weight_name(tensor.name)] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head = head.ljust((len(head) + 7) // 8 * 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for done, tensor in enumerate(tensors, 1):
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            part = tensor.name.split(".")[-2]
            file.write(to_bf16(unpermute(values, heads[part]) if part in heads else values).tobytes())
            report(done)


def convert_gguf(source: Path, folder: Path, report: Callable[[int, int], None]) -> None:
    """Write the model of the GGUF file `source` into the existing `folder`.

    report(done, total): called after each part of the work.
    Raises: UnknownGguf; OSError if the disk is full or the file cannot be read.
    """
    reader = gguf.GGUFReader(source)
    fields = Metadata(reader)
    config = read_config(fields)
    if config["model_type"] != "llama":
        raise UnknownGguf(
            f"the GGUF file has an unsupported architecture (got {config['model_type']}); allowed: llama"
        )
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta", 10000.0)}
    config |= {"dtype": "bfloat16", "rope_parameters": rope}
    total = len(reader.tensors) + 2
    report(1, total)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    _write_weights(reader.tensors, heads, folder / "model.safetensors", lambda done: report(1 + done, total))
    write_json(folder / "config.json", config)
    write_texts(source, fields, folder)
    report(total, total)


def _report(done: int, total: int) -> None:
    print(json.dumps({"done": done, "total": total}), flush=True)


if __name__ == "__main__":
    sys.exit(run(lambda source, folder: convert_gguf(source, folder, _report)))
