"""Families with sentencepiece tokens and byte fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from tests.support import chat_templates
from tests.support.tokenizer_families.parts import (
    added_tokens_decoder,
    as_objects,
    pieces,
    save,
    save_pieces,
    special,
    write,
)
from tests.support.tokenizers import LLAMA_PIECES

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _llama2_config(tokenizer: Tokenizer, template: Any, **more: Any) -> dict[str, Any]:
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
        "bos_token": "<s>",
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": None,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
        **more,
    }


def llama2(folder: Path) -> None:
    tokenizer = pieces([])
    config = _llama2_config(tokenizer, chat_templates.LLAMA2)
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "temperature": 0.6, "top_p": 0.9}
    save(folder, tokenizer, "llama", config, as_objects(_TOKENS), generation, 2)


def mistral(folder: Path) -> None:
    """The first version: its chat template has [INST] as text, and `legacy` is set."""
    tokenizer = pieces([])
    config = _llama2_config(tokenizer, chat_templates.MISTRAL, legacy=True, additional_special_tokens=[])
    save(folder, tokenizer, "mistral", config, _TOKENS, None, 2)


def mistral_v3(folder: Path) -> None:
    """[INST] and others are tokens, and there are two named chat templates."""
    tokenizer = pieces(
        special("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
    )
    templates = [
        {"name": "default", "template": chat_templates.MISTRAL},
        {"name": "tool_use", "template": chat_templates.MISTRAL_TOOLS},
    ]
    config = _llama2_config(tokenizer, templates, add_prefix_space=None)
    save(folder, tokenizer, "mistral", config, None, {"bos_token_id": 1, "eos_token_id": 2}, 2)


def _gemma(folder: Path, model_type: str, *, own_file: bool) -> None:
    added = special("<start_of_turn>", "<end_of_turn>")
    added += [
        AddedToken(text, normalized=False, special=False)
        for text in ("\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>")
    ]
    tokenizer = pieces(added, gemma=True)
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": added_tokens_decoder(tokenizer),
        "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
        "bos_token": "<bos>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<eos>",
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": "<pad>",
        "sp_model_kwargs": {},
        "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }
    end = tokenizer.token_to_id("<end_of_turn>")
    generation = {"bos_token_id": 2, "eos_token_id": [1, end] if own_file else 1, "pad_token_id": 0}
    if own_file:
        write(folder, "chat_template.json", {"chat_template": chat_templates.GEMMA})
        write(folder, "added_tokens.json", {"<start_of_turn>": end - 1})
    else:
        config["chat_template"] = chat_templates.GEMMA
    save(folder, tokenizer, model_type, config, None, generation, [1, end])


def gemma2(folder: Path) -> None:
    _gemma(folder, "gemma2", own_file=False)


def gemma3(folder: Path) -> None:
    """The chat template is in chat_template.json."""
    _gemma(folder, "gemma3_text", own_file=True)


def phi3(folder: Path) -> None:
    added = special("<|endoftext|>") + special(
        "<|assistant|>", "<|end|>", "<|system|>", "<|user|>", rstrip=True
    )
    tokenizer = pieces(added)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0", pair="$A:0 $B:1", special_tokens=[]
    )
    config = _llama2_config(tokenizer, chat_templates.PHI3, add_bos_token=False) | {
        "eos_token": "<|endoftext|>"
    }
    ids = [tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|assistant|>", "<|end|>")]
    generation = {"bos_token_id": 1, "eos_token_id": ids, "pad_token_id": ids[0]}
    save(folder, tokenizer, "phi3", config, None, generation, ids[0])


def llama2_pieces(folder: Path) -> None:
    config = as_objects(_TOKENS, __type="AddedToken") | {
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": False,
        "tokenizer_class": "LlamaTokenizer",
        "chat_template": chat_templates.LLAMA2,
    }
    save_pieces(folder, "bpe", "llama", config, vocab_size=700, **LLAMA_PIECES)


def mistral_pieces(folder: Path) -> None:
    config = {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizer"}
    save_pieces(folder, "bpe", "mistral", _TOKENS | config, vocab_size=700, **LLAMA_PIECES)


def gemma_pieces(folder: Path) -> None:
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>", "bos_piece": "<bos>"}
    more = {"add_dummy_prefix": False, "user_defined_symbols": ["<mask>", "<start_of_turn>", "<end_of_turn>"]}
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    config |= {
        "add_bos_token": True,
        "tokenizer_class": "GemmaTokenizer",
        "chat_template": chat_templates.GEMMA,
    }
    save_pieces(folder, "bpe", "gemma", config, vocab_size=700, **LLAMA_PIECES, **ids, **more)
