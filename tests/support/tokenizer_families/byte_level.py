"""Families with byte-level BPE."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors

from tests.support import chat_templates
from tests.support.tokenizer_families.parts import (
    added_tokens_decoder,
    as_object,
    as_objects,
    begin,
    byte_level,
    save,
    special,
    write,
)

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN = _CL100K.replace("{1,3}", "")
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def llama3(folder: Path) -> None:
    names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ]
    tokenizer = byte_level(special(*names), _CL100K, ignore_merges=True)
    begin(tokenizer, "<|begin_of_text|>", keep=processors.ByteLevel(trim_offsets=True, add_prefix_space=True))
    ids = {name: tokenizer.token_to_id(name) for name in names}
    ends = [ids["<|end_of_text|>"], ids["<|eom_id|>"], ids["<|eot_id|>"]]
    config = {
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
        "bos_token": "<|begin_of_text|>",
        "chat_template": chat_templates.LLAMA3,
        "clean_up_tokenization_spaces": True,
        "eos_token": "<|eot_id|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    named = as_objects({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"})
    generation = {"bos_token_id": ids["<|begin_of_text|>"], "do_sample": True, "eos_token_id": ends}
    save(folder, tokenizer, "llama", config, named, generation, ends)


def _qwen(folder: Path, model_type: str, template: str, *, thinking: bool) -> None:
    more = ["<tool_call>", "</tool_call>", "<think>", "</think>"] if thinking else []
    added = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    added += [AddedToken(text, normalized=False, special=False) for text in more]
    tokenizer = byte_level(added, _QWEN, normalizer=normalizers.NFC())
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    end, other = (tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>"))
    generation = {"bos_token_id": other, "pad_token_id": other, "eos_token_id": [end, other], "top_k": 20}
    save(folder, tokenizer, model_type, config, None, generation, end)
    tokenizer.model.save(str(folder))


def qwen2(folder: Path) -> None:
    _qwen(folder, "qwen2", chat_templates.CHATML, thinking=False)


def qwen3(folder: Path) -> None:
    _qwen(folder, "qwen3", chat_templates.QWEN3, thinking=True)


def phi4(folder: Path) -> None:
    """The chat template is in chat_template.jinja. Its tokens strip the spaces around them."""
    tokenizer = byte_level(
        special("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>", lstrip=True, rstrip=True),
        _CL100K,
    )
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
        "bos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 16384,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>",
    }
    ids = [tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>")]
    save(folder, tokenizer, "phi3", config, None, {"eos_token_id": ids}, ids[0])
    write(folder, "chat_template.jinja", chat_templates.PHI4)


def gpt2(folder: Path) -> None:
    tokenizer = byte_level(special("<|endoftext|>"))
    end = tokenizer.token_to_id("<|endoftext|>")
    generation = {"bos_token_id": end, "eos_token_id": end}
    save(folder, tokenizer, "gpt2", {"model_max_length": 1024}, None, generation, end)
    tokenizer.model.save(str(folder))


def opt(folder: Path) -> None:
    """There is no tokenizer.json. Every text starts with `</s>`."""
    tokenizer = byte_level([], None)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    shifted = {name: number for number, name in enumerate(names)}
    shifted |= {text: number + len(names) for text, number in vocabulary.items()}
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    config = as_objects(tokens | {"pad_token": "<pad>"}, normalized=True, __type="AddedToken") | {
        "errors": "replace",
        "add_prefix_space": False,
        "add_bos_token": True,
        "special_tokens_map_file": None,
        "tokenizer_class": "GPT2Tokenizer",
        "name_or_path": "patrickvonplaten/opt-30b",
    }
    generation = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    save(folder, None, "opt", config, as_objects(tokens, normalized=True), generation, 2)
    tokenizer.model.save(str(folder))
    write(folder, "vocab.json", shifted)


def _neox(folder: Path, model_type: str, added: list[AddedToken], config: dict[str, Any]) -> None:
    tokenizer = byte_level(added, normalizer=normalizers.NFC())
    named = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    end = tokenizer.token_to_id("<|endoftext|>")
    save(folder, tokenizer, model_type, {**named, **config}, named, None, end)


def gpt_neox(folder: Path) -> None:
    """Runs of spaces are added tokens, matched in normalized text."""
    runs = [AddedToken(" " * length, normalized=True, special=False) for length in (8, 4, 3, 2)]
    added = [*special("<|endoftext|>", "<|padding|>"), *runs]
    _neox(folder, "gpt_neox", added, {"add_prefix_space": False, "tokenizer_class": "GPTNeoXTokenizer"})


def mpt(folder: Path) -> None:
    runs = [AddedToken(" " * length, normalized=True, special=False) for length in (4, 2)]
    more = {
        "clean_up_tokenization_spaces": True,
        "model_max_length": 2048,
        "tokenizer_class": "GPTNeoXTokenizer",
    }
    _neox(folder, "mpt", [*special("<|endoftext|>", "<|padding|>"), *runs], more)


def bloom(folder: Path) -> None:
    tokenizer = byte_level(special("<unk>", "<s>", "</s>", "<pad>"), _BLOOM)
    named = {"unk_token": "<unk>", "eos_token": "</s>", "bos_token": "<s>", "pad_token": "<pad>"}
    config = {
        **named,
        "name_or_path": "bigscience/tokenizer",
        "padding_side": "left",
        "tokenizer_class": "BloomTokenizerFast",
    }
    end = tokenizer.token_to_id("</s>")
    save(folder, tokenizer, "bloom", config, named, None, end)


def falcon(folder: Path) -> None:
    names = [">>TITLE<<", ">>ABSTRACT<<", ">>QUESTION<<", ">>ANSWER<<", "<|endoftext|>"]
    first = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    first += [
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    tokenizer = byte_level(special(*names), first=[*first])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(first)
    config = {
        "add_prefix_space": False,
        "eos_token": "<|endoftext|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "special_tokens_map_file": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    named = {"additional_special_tokens": names, "eos_token": "<|endoftext|>"}
    end = tokenizer.token_to_id("<|endoftext|>")
    save(folder, tokenizer, "falcon", config, named, {"bos_token_id": end, "eos_token_id": end}, end)


def _ranks() -> list[str]:
    """Tokens of a byte-level BPE by rank, in base64."""
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    vocabulary = json.loads(byte_level([], _CL100K).to_str())["model"]["vocab"]
    tokens = [bytes(letters[letter] for letter in text) for text in sorted(vocabulary, key=vocabulary.get)]
    return [base64.b64encode(token).decode() for token in tokens]


def tiktoken(folder: Path) -> None:
    """tokenizer.model in tiktoken's format, as in Llama 3's original files."""
    ranks = _ranks()
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    added = {str(len(ranks) + place): as_object(text) | {"special": True} for place, text in enumerate(names)}
    config = {"added_tokens_decoder": added, "bos_token": names[0], "eos_token": names[1]}
    save(folder, None, "llama", config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    write(folder, "tokenizer.model", "".join(f"{token} {rank}\n" for rank, token in enumerate(ranks)))


def tekken(folder: Path) -> None:
    """Mistral's own format."""
    ranks, names = _ranks(), ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    data = {
        "config": {
            "pattern": _CL100K,
            "default_vocab_size": 600,
            "default_num_special_tokens": 10,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": token, "token_str": None} for rank, token in enumerate(ranks)
        ],
        "special_tokens": [{"rank": rank, "token_str": text} for rank, text in enumerate(names)],
    }
    save(folder, None, "mistral", None, None, {"bos_token_id": 1, "eos_token_id": 2}, 2)
    write(folder, "tekken.json", data)


def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: the byte itself if printable, otherwise one from U+0100 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
