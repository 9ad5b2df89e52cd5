"""Special tokens that the files of a model name, or that its tokenizer's class has by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lmi_server.text.tokenizer import TextModel

CHAT = [{"role": "user", "content": "Hi"}]
GPT2 = {"tokenizer_class": "GPT2TokenizerFast"}


def text_model(folder: Path, template: str, config: dict[str, Any], model_type: str = "llama") -> TextModel:
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "generation_config.json").unlink()
    return TextModel.from_folder(folder)


def render(text: TextModel) -> str:
    assert text.chat_template is not None
    return text.chat_template.render(CHAT, 1000)


@pytest.mark.parametrize(
    ("config", "model_type", "expected", "eos_token_ids"),
    [
        (GPT2, "llama", "<|endoftext|>,<|endoftext|>", (0,)),
        ({**GPT2, "eos_token": "<|im_end|>"}, "llama", "<|endoftext|>,<|im_end|>", (2,)),
        ({**GPT2, "eos_token": None}, "llama", "<|endoftext|>,", ()),
        ({}, "gpt2", "<|endoftext|>,<|endoftext|>", (0,)),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "gpt2", ",", ()),
        ({"tokenizer_class": "BloomTokenizerFast"}, "bloom", ",", ()),
    ],
)
def test_defaults_of_unconverted_tokenizers_equal_transformers(
    config: dict[str, Any],
    model_type: str,
    expected: str,
    eos_token_ids: tuple[int, ...],
    own_folder: Path,
) -> None:
    text = text_model(own_folder, "{{ bos_token }},{{ eos_token }}", config, model_type)
    theirs = AutoTokenizer.from_pretrained(own_folder).apply_chat_template(CHAT, tokenize=False)
    assert render(text) == theirs == expected
    assert text.eos_token_ids == eos_token_ids


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"additional_special_tokens": ["<a>", {"content": "<b>"}]}, "['<a>', '<b>']"),
        ({"extra_special_tokens": ["<a>"]}, "['<a>']"),
        ({"extra_special_tokens": {"image_token": "<a>"}}, "[]"),
        ({}, "[]"),
    ],
)
def test_templates_get_the_additional_special_tokens(
    config: dict[str, Any], expected: str, own_folder: Path
) -> None:
    assert render(text_model(own_folder, "{{ additional_special_tokens }}", config)) == expected


@pytest.mark.parametrize(
    ("config", "tokens_map"),
    [
        ({"eos_token": "<|endoftext|>"}, {"eos_token": "<|im_end|>"}),
        ({"eos_token": "<|endoftext|>"}, {"eos_token": {"content": "<|im_end|>"}}),
        ({"eos_token": ""}, {"eos_token": "<|im_end|>"}),
        ({"eos_token": "<|im_end|>"}, {"eos_token": None}),
        ({"eos_token": "<|endoftext|>"}, {"pad_token": "<|im_end|>"}),
        ({"eos_token": "<|endoftext|>", "added_tokens_decoder": {}}, {"eos_token": "<|im_end|>"}),
        ({"added_tokens_decoder": {}}, {"eos_token": "<|im_end|>"}),
    ],
)
def test_special_tokens_map_overrides_the_config_as_in_transformers(
    config: dict[str, Any], tokens_map: dict[str, Any], own_folder: Path
) -> None:
    (own_folder / "special_tokens_map.json").write_text(json.dumps(tokens_map))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    text = text_model(own_folder, "{{ eos_token }},{{ pad_token }}", config)
    tokenizer = AutoTokenizer.from_pretrained(own_folder)
    assert render(text) == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert text.eos_token_ids == tuple({tokenizer.eos_token_id} - {None})
