"""Tiny models as GGUF files written by the package gguf, and as checkpoints with the same dequantized weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from container.models.gguf_describe import describe
from tests.bench.peers.gguf_file import permute, write_shape
from tests.support.seeds import fresh_generator
from tests.support.tiny_models import save_model

ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
}
"""GGUF's architecture names, by the names in `tiny_models.SHAPES`."""
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""Rows are whole blocks of 32 numbers."""
WIDE = SHAPE | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Rows are whole blocks of 256 numbers."""
_Q4_K_BYTES = 144


def save_gguf(
    folder: Path, name: str, kind: Kind, tensors_per_file: int = 0, **changes: Any
) -> tuple[Path, Path, Path]:
    """Save a random model of `SHAPES` as one or several GGUF files with matrices of type `kind`.

    Returns: the first file, its description as a model folder, and a checkpoint with the dequantized weights.
    """
    checkpoint, file, described = folder / "checkpoint", folder / "file" / "model.gguf", folder / "described"
    save_model(checkpoint, name, **(SHAPE | changes))
    for path in (file.parent, described):
        path.mkdir()
    (file.parent / "tokenizer.json").write_text("{}")
    write_gguf(checkpoint, file, ARCHITECTURES[name], kind, tensors_per_file=tensors_per_file)
    (file,) = file.parent.glob("*-00001-of-*.gguf" if tensors_per_file else file.name)
    describe(file, described)
    return file, described, checkpoint


def write_gguf(
    checkpoint: Path,
    file: Path,
    architecture: str,
    kind: Kind,
    tokenizer: Path | None = None,
    pre: str = "",
    tensors_per_file: int = 0,
) -> None:
    """Write the checkpoint as GGUF, and the dequantized weights back to the checkpoint.

    tokenizer: a folder with a BPE. pre: GGUF's name of the pre-tokenizer; empty for SentencePiece.
    tensors_per_file: tensors per file; 0: write a single file.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(file, architecture, split_max_tensors=tensors_per_file)
    write_shape(writer, config, architecture)
    if tokenizer is not None:
        write_tokenizer(writer, tokenizer, pre)
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = checkpoint / "model.safetensors"
    tensors, dequantized = load_file(weights), {}
    for number, (name, stacked) in enumerate(_stacks(tensors).items()):
        gguf_name = names.get_name(name, (".weight", ".bias"))
        assert gguf_name is not None, name
        part = gguf_name.split(".")[-2]
        permuted_heads = heads.get(part) if architecture == "llama" else None
        offset = float(architecture.startswith("gemma") and gguf_name.endswith("norm.weight"))
        values = np.stack([tensors[each].numpy() for each in stacked]) + np.float32(offset)
        values = values if "_exps." in gguf_name else values[0]
        values = values if permuted_heads is None else permute(values, permuted_heads).reshape(values.shape)
        stored = kind if values.ndim > 1 and "ffn_gate_inp" not in gguf_name else Kind.F32
        data = _random_q4_k(values.shape, number) if stored is Kind.Q4_K else quantize(values, stored)
        writer.add_tensor(gguf_name, data, raw_dtype=stored)
        values = dequantize(data, stored).reshape(values.shape)
        if permuted_heads is not None:
            half = values.shape[0] // permuted_heads // 2
            values = values.reshape(permuted_heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)
        values = values if "_exps." in gguf_name else values[None]
        for each, part in zip(stacked, values, strict=True):
            dequantized[each] = torch.from_numpy(np.ascontiguousarray(part - np.float32(offset)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(dequantized, weights, {"format": "pt"})


def _stacks(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the tensor names of all experts by their common name. Other tensors are groups of one."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        number = re.search(r"\.experts\.(\d+)\.", name)
        common = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        found.setdefault(common, {})[int(number[1]) if number else 0] = name
    return {common: [numbered[i] for i in sorted(numbered)] for common, numbered in found.items()}


def _token_type(token: str, special: bool | None) -> gguf.TokenType:
    """special: of an added token; None for others."""
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return gguf.TokenType.BYTE
    if special is None:
        return gguf.TokenType.NORMAL
    return gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED


def write_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    """Add the metadata of a folder's tokenizer.json, a BPE. pre: as in `write_gguf`."""
    data = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token["content"] for token in data["added_tokens"]}
    special = {token["id"]: token["special"] for token in data["added_tokens"]}
    tokens = {number: token for token, number in data["model"]["vocab"].items()} | added
    assert sorted(tokens) == list(range(len(tokens)))
    merges = data["model"]["merges"]
    writer.add_tokenizer_model("gpt2" if pre else "llama")
    writer.add_tokenizer_pre(pre or "default")
    writer.add_token_list([tokens[number] for number in range(len(tokens))])
    writer.add_token_types(
        [_token_type(tokens[number], special.get(number)) for number in range(len(tokens))]
    )
    if not pre:
        writer.add_token_scores([-float(number) for number in range(len(tokens))])
        writer.add_add_space_prefix("Prepend" in json.dumps(data["normalizer"]))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    bos = ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<bos>", "<s>", "<|endoftext|>")
    numbers = {token: number for number, token in tokens.items()}
    writer.add_bos_token_id(next(numbers[token] for token in bos if token in numbers))
    writer.add_pad_token_id((1 << 32) - 1)  # not in the vocabulary, as in some files
    writer.add_chat_template("{{ messages }}")


def _random_q4_k(shape: tuple[int, ...], seed: int) -> npt.NDArray[np.uint8]:
    """Random blocks, since the package gguf cannot quantize to this type."""
    generator = fresh_generator()
    generator.manual_seed(seed)
    num_blocks = shape[0] * shape[1] // 256
    blocks = torch.randint(0, 256, (num_blocks, _Q4_K_BYTES), generator=generator, dtype=torch.uint8).numpy()
    # The fp16 scales of a block: for its values, and for its offsets.
    blocks[:, :4] = np.array([0.0004, 0.003], np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def copy_gguf(file: Path, target: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Copy a GGUF file with more tensors."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
