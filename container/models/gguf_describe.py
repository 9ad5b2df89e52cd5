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
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from container.models.gguf_config import Metadata, UnknownGguf, read_config
from container.models.gguf_names import parts_of
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
_CONTROL_TOKEN, _USER_TOKEN = 3, 4  # gguf's TokenType.CONTROL and TokenType.USER_DEFINED
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"),
        *("<end_of_utterance>", "<turn|>", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>"),
    }
)
"""Tokens that end a turn or a text, as in llama.cpp, even if the metadata has only one of them."""
_BEGIN_WITH_BOS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
"""Pre-tokenizers of models that begin texts with BOS, as in llama.cpp, unless the metadata says that they do not."""
_UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
_UNKNOWN_VERSION = re.compile(r"version (\d+) which we cannot handle")
_PHI3_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
_SPACE = "▁"


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
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise UnknownGguf(_unreadable(file, str(error))) from None


def _unreadable(file: Path, error: str) -> str:
    """Return why gguf cannot read a file."""
    if found := _UNKNOWN_TYPE.search(error):
        return f"{file} has tensors of the unknown type {found[1]}; choose a file with another quantization"
    if found := _UNKNOWN_VERSION.search(error):
        return f"{file} has version {found[1]} of the GGUF format, which is not supported; convert the model again"
    return f"{file} is not a complete GGUF file: {error}"


def write_texts(file: Path, metadata: Metadata, folder: Path, with_tokenizer: bool = True) -> None:
    """Write generation_config.json, the chat template, and the tokenizer's two files. Raises UnknownGguf."""
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in (*_SPECIAL.values(), "eot")}
    named = {ids[name] for name in ("eos", "eot") if ids[name] is not None}
    stops = sorted(named | _ends(metadata))
    generation = {"bos_token_id": ids["bos"], "eos_token_id": stops or None, "pad_token_id": ids["padding"]}
    write_json(folder / "generation_config.json", generation)
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if with_tokenizer:
        _tokenizer(file, metadata).save(str(folder / _TOKENIZER))
        tokens = metadata["tokenizer.ggml.tokens"]
        special = {name: tokens[ids[key]] for name, key in _SPECIAL.items() if ids[key] is not None}
        kind = "PreTrainedTokenizerFast"
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, **special})


def _ends(metadata: Metadata) -> set[int]:
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") or () for name in ("tokens", "token_type"))
    kinds = zip(tokens, types, strict=True) if types else ()
    return {
        number
        for number, (token, kind) in enumerate(kinds)
        # The first Gemma files have it as an ordinary token.
        if token in _ENDS and (kind in (_CONTROL_TOKEN, _USER_TOKEN) or token == "<end_of_turn>")  # noqa: S105
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


def _tokenizer(file: Path, metadata: Metadata) -> Tokenizer:
    """Build the tokenizer from the metadata, with transformers for every kind but SmolLM's. Raises UnknownGguf."""
    kind, pre = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if (kind, pre) == ("gpt2", "smollm"):
        return _smollm(metadata)
    from transformers import AutoTokenizer  # takes seconds
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        GGUF_SENTENCEPIECE_BUILDERS,
    )

    advice = f"put the model's {_TOKENIZER} next to {file}"
    # For other kinds of gpt2, transformers would silently use GPT-2's pre-tokenizer.
    if kind is None or (kind == "gpt2" and pre not in {*GGUF_PRE_TOKENIZER_SPLITS, "gpt-2"}):
        raise UnknownGguf(
            f"the GGUF file has an unsupported tokenizer ('{kind}' with pre-tokenizer '{pre}'); {advice}"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except Exception as error:  # transformers raises errors of every type
        why = " ".join(str(error).split()) or type(error).__name__
        raise UnknownGguf(
            f"transformers cannot convert the tokenizer of the GGUF file ({why}); {advice}"
        ) from error
    backend: Tokenizer = tokenizer.backend_tokenizer
    architecture = metadata["general.architecture"]
    if kind == "llama" and architecture not in GGUF_SENTENCEPIECE_BUILDERS:
        _prefix_as_sentencepiece(backend, metadata.get("tokenizer.ggml.add_space_prefix") is not False)
    if kind == "gpt2" and pre in _BEGIN_WITH_BOS and metadata.get("tokenizer.ggml.add_bos_token") is None:
        _begin_with_bos(backend, metadata.get("tokenizer.ggml.bos_token_id"))
    return _without_following_spaces(backend) if (kind, architecture) == ("llama", "phi3") else backend


def _begin_with_bos(tokenizer: Tokenizer, bos: int | None) -> None:
    if bos is not None and (token := tokenizer.id_to_token(bos)) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token}:0 $A:0", pair=f"{token}:0 $A:0 {token}:1 $B:1", special_tokens=[(token, bos)]
        )


def _without_following_spaces(tokenizer: Tokenizer) -> Tokenizer:
    """Make special tokens take the spaces and newlines after them, as in Phi-3's tokenizer.json and in llama.cpp."""
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["rstrip"] = token["special"] and token["content"] not in _PHI3_KEEPS_SPACES
    return Tokenizer.from_str(json.dumps(data))


def _prefix_as_sentencepiece(tokenizer: Tokenizer, adds_space: bool) -> None:
    """Make a tokenizer begin texts as SentencePiece and llama.cpp do: with one more space always, or never if
    `adds_space` is false. transformers' LlamaTokenizer adds a space only if there is none."""
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if adds_space else spaces
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)


def _smollm(metadata: Metadata) -> Tokenizer:
    """Build a tokenizer with llama.cpp's pre-tokenizer "smollm": single digits, then GPT-2's pattern."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


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
