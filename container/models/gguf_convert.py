"""Convert a GGUF file of the Llama family to a model folder: bf16 safetensors, config.json, tokenizer, chat template.

`python -m container.models.gguf_convert FILE FOLDER`, run as a child process by `container/models/files/bundled.py`. It
needs numpy, gguf and tokenizers, but neither torch nor transformers. Progress goes to stdout, one JSON object
`{"done": n, "total": m}` a line.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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
_CONTROL_TOKEN = 3  # gguf's TokenType.CONTROL

# llama.cpp's pre-tokenizer "smollm": every digit alone, then GPT-2's pattern.
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


class UnknownGguf(Exception):
    """The file is not supported. The text says what was found."""


def weight_name(name: str) -> str:
    """Name of GGUF's tensor `name` in a Hugging Face Llama checkpoint. Raises UnknownGguf."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[part]}.weight"
    raise UnknownGguf(f"the GGUF file holds a tensor '{name}', which a Llama model does not have")


def unpermute(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's order of q and k rows: rotary pairs are adjacent there, and in two halves in checkpoints.

    weight: [num_heads * head_dim, hidden_size].
    """
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bit patterns of bf16, rounded to nearest, ties to even. The values are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_weights(
    tensors: Sequence[Any], heads: dict[str, int], path: Path, report: Callable[[int], None]
) -> frozenset[str]:
    """Write the tensors as bf16 safetensors, with only one of them in memory at a time.

    heads: number of heads of each part in GGUF's rotary order.
    The file: length of the header (u64, little-endian), header (JSON, padded to 8 bytes), data.
    Returns the names written.
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
    return frozenset(header) - {"__metadata__"}


def _shortest(value: float) -> float:
    """The shortest float with the same fp32 value: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


@dataclass(frozen=True, slots=True)
class _Fields:
    """The metadata of a GGUF file by key."""

    reader: gguf.GGUFReader

    def get(self, key: str) -> Any:
        field = self.reader.get_field(key)
        return None if field is None else field.contents()

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise UnknownGguf(f"the GGUF file has no field '{key}'")
        return value


def _config(fields: _Fields, tied: bool, vocab_size: int) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_theta": _shortest(fields["llama.rope.freq_base"]), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def _tokenizer(fields: _Fields, tokens: list[str]) -> Tokenizer:
    kind, pre = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise UnknownGguf(f"the GGUF file has a tokenizer '{kind}' with '{pre}'; known: gpt2 with smollm")
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write_texts(fields: _Fields, folder: Path, tokens: list[str]) -> None:
    """tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja."""
    _tokenizer(fields, tokens).save(str(folder / "tokenizer.json"))
    ids = {name: fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding", "unknown")}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[ids["bos"]],
            "eos_token": tokens[ids["eos"]],
            "pad_token": tokens[ids["padding"]],
            "unk_token": tokens[ids["unknown"]],
            "clean_up_tokenization_spaces": False,
            "model_max_length": fields["llama.context_length"],
        },
    )
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["padding"]},
    )
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def convert_gguf(source: Path, folder: Path, report: Callable[[int, int], None]) -> None:
    """Write the model of the GGUF file `source` into the existing `folder`.

    report(done, total): called after each part of the work.
    Raises: UnknownGguf; OSError when the disk is full or the file cannot be read.
    """
    reader = gguf.GGUFReader(source)
    fields = _Fields(reader)
    if fields["general.architecture"] != "llama":
        raise UnknownGguf(
            f"the GGUF file holds the architecture '{fields['general.architecture']}'; known: llama"
        )
    total = len(reader.tensors) + 2
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    report(1, total)
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    names = _write_weights(
        reader.tensors, heads, folder / "model.safetensors", lambda done: report(1 + done, total)
    )
    _write_json(folder / "config.json", _config(fields, "lm_head.weight" not in names, len(tokens)))
    _write_texts(fields, folder, tokens)
    report(total, total)


def main(arguments: list[str]) -> int:
    source, folder = map(Path, arguments)

    def report(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), flush=True)

    try:
        convert_gguf(source, folder, report)
    except (UnknownGguf, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
