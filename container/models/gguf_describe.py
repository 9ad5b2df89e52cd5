"""Write a model folder that describes GGUF files: config.json, tokenizer, chat template, and an index of tensors.

`python -m container.models.gguf_describe FILE FOLDER`, run as a child process by
`container/models/files/gguf_description.py`. FILE is the model's first file. Weights stay in the GGUF files. The
tokenizer is the tokenizer.json beside FILE, or is built from the metadata. Prints nothing on success, else one line on
stderr.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from container.models.gguf_config import Metadata, UnknownGguf, read_config, special_ids
from container.models.gguf_names import parts_of
from container.models.gguf_tokenizer import WHOLE, build_tokenizer
from engines.models.gguf_index import GgufIndex, GgufTensor

_MAX_BYTES = 8 << 30
"""Memory that metadata may take: an array of any length may be announced."""
_TOKENIZER = "tokenizer.json"
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"),
    _TOKENIZER,
)
"""Files beside a GGUF file that override its metadata."""
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"),
        *("<end_of_utterance>", "<turn|>", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>"),
    }
)
"""Tokens that end a turn or a text, as in llama.cpp, even if the metadata has only one of them."""
_UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
_UNKNOWN_VERSION = re.compile(r"version (\d+) which we cannot handle")


def describe(file: Path, folder: Path) -> None:
    """Write the description into the existing `folder`. Raises UnknownGguf, OSError."""
    files = [file.with_name(name) for name in parts_of(file.name)]
    first, *others = map(_reader, files)
    metadata = Metadata(first, tuple(others))
    config = read_config(metadata)
    write_json(folder / "config.json", config)
    _index(files, metadata, config).save(folder)
    beside = [path for path in map(file.with_name, _BESIDE) if path.is_file()]
    write_texts(file, metadata, folder, with_tokenizer=file.with_name(_TOKENIZER) not in beside)
    for path in beside:
        shutil.copyfile(path, folder / path.name)


def _reader(file: Path) -> gguf.GGUFReader:
    try:
        reader = gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise UnknownGguf(_unreadable(file, str(error))) from None
    for kind in {tensor.tensor_type for tensor in reader.tensors}:
        if not _can_dequantize(kind):
            raise UnknownGguf(_unsupported_type(file, kind.name))
    return reader


def _can_dequantize(kind: gguf.GGMLQuantizationType) -> bool:
    """Try one block: gguf names more formats than it can convert, and only says so by NotImplementedError."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros(block_bytes, np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _unreadable(file: Path, error: str) -> str:
    """Return why gguf cannot read a file."""
    if found := _UNKNOWN_TYPE.search(error):
        return _unsupported_type(file, found[1])
    if found := _UNKNOWN_VERSION.search(error):
        return f"{file} has version {found[1]} of the GGUF format, which is not supported; convert the model again"
    return f"{file} is not a complete GGUF file: {error}"


def _unsupported_type(file: Path, kind: str) -> str:
    return f"{file} has tensors of the unsupported type {kind}; choose a file with another quantization"


def write_texts(file: Path, metadata: Metadata, folder: Path, with_tokenizer: bool = True) -> None:
    """Write generation_config.json, the chat template, and the tokenizer's two files. Raises UnknownGguf."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    ids = special_ids(metadata, len(tokens))
    named = {id_ for name in ("eos", "eot") if (id_ := ids[name]) is not None}
    stops = sorted(named | _ends(metadata))
    generation = {"bos_token_id": ids["bos"], "eos_token_id": stops or None, "pad_token_id": ids["padding"]}
    write_json(folder / "generation_config.json", generation)
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if with_tokenizer:
        try:
            build_tokenizer(metadata, tokens, ids).save(str(folder / _TOKENIZER))
        except UnknownGguf as error:
            raise UnknownGguf(f"{error}; put the model's {_TOKENIZER} next to {file}") from error
        special = {name: tokens[id_] for name, key in _SPECIAL.items() if (id_ := ids[key]) is not None}
        kind = "PreTrainedTokenizerFast"
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, **special})


def _ends(metadata: Metadata) -> set[int]:
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") or () for name in ("tokens", "token_type"))
    if types and len(types) != len(tokens):
        raise UnknownGguf(f"the GGUF file has {len(tokens)} tokens, but types of {len(types)}")
    return {
        number
        for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
        # The first Gemma files have it as an ordinary token.
        if token in _ENDS and (kind in WHOLE or token == "<end_of_turn>")  # noqa: S105
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _index(files: Sequence[Path], metadata: Metadata, config: dict[str, Any]) -> GgufIndex:
    heads, architecture = config["num_attention_heads"], metadata.architecture
    interleaved = {"attn_q": heads, "attn_k": config.get("num_key_value_heads", heads)}
    return GgufIndex(
        folder=str(files[0].parent),
        sizes={file.name: file.stat().st_size for file in files},
        architecture=metadata["general.architecture"],
        num_layers=config["num_hidden_layers"],
        dtype=config["dtype"],
        interleaved_heads=interleaved if architecture.interleaved else {},
        norm_offset=architecture.norm_offset,
        tensors={
            tensor.name: GgufTensor(
                int(tensor.tensor_type),
                tuple(int(size) for size in reversed(tensor.shape)),
                int(tensor.data_offset),
                file.name,
            )
            for file, reader in zip(files, (metadata.reader, *metadata.others), strict=True)
            for tensor in reader.tensors
        },
    )


def run(work: Callable[[Path, Path], None], max_bytes: int | None = None) -> int:
    """Run `work` on the two paths of the command line. Returns the process's exit code.

    max_bytes: memory that may be allocated. Mapped files do not count.
    """
    if max_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    is_memory_full = False
    try:
        work(*map(Path, sys.argv[1:]))
    except (MemoryError, SystemError):  # C code without memory may raise no error of its own
        is_memory_full = True  # until the end of this block
    except (UnknownGguf, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if is_memory_full:
        print(f"{sys.argv[1]} is not a complete GGUF file: its metadata fill the memory", file=sys.stderr)
    return int(is_memory_full)


if __name__ == "__main__":
    sys.exit(run(describe, _MAX_BYTES))
