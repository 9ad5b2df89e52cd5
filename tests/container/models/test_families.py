"""Tokenizers and chat templates of published model families against transformers, in process."""

from __future__ import annotations

import functools
import json
import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container.models import tokenizer_files
from container.models.tokenizer_convert import convert_tokenizer
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.tokenizer import TextModel
from tests.support.randomness import FULL
from tests.support.script_texts import script_texts
from tests.support.tokenizer_families import FAMILIES

pytest.importorskip("sentencepiece", reason="needs sentencepiece")

NUM_TEXTS = 2000 if FULL else 100
CHAT = [
    {"role": "user", "content": "  Hello  there\n"},
    {"role": "assistant", "content": " naïve 😀 "},
    {"role": "user", "content": "<s>[INST] 3.14 <|im_end|>\n\n"},
]


@dataclass(frozen=True)
class Family:
    folder: Path
    text: TextModel
    theirs: Any
    """The tokenizer of transformers."""

    def texts(self) -> list[str]:
        return script_texts(NUM_TEXTS, list(self.theirs.added_tokens_encoder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, folders: Path) -> Family:
    return make_family(request.param, folders)


def make_family(name: str, folders: Path) -> Family:
    from transformers import AutoTokenizer

    model = folders / name
    if not model.is_dir():
        FAMILIES[name](model)
    tokenizer = model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers
        if not tokenizer_files.loads_unchanged(model):
            tokenizer = folders / f"{name} converted"
            tokenizer.mkdir(exist_ok=True)
            convert_tokenizer(model, tokenizer)
        return Family(model, TextModel.from_folder(model, tokenizer), AutoTokenizer.from_pretrained(model))


def test_ids_equal_transformers(family: Family) -> None:
    texts = family.texts()
    assert [list(family.text.encode(text)) for text in texts] == family.theirs(texts).input_ids
    ours = [list(family.text.encode(text, add_special_tokens=False)) for text in texts]
    assert ours == family.theirs(texts, add_special_tokens=False).input_ids


def stream(text: TextModel, ids: list[int], skip_special_tokens: bool) -> str:
    detokenizer = IncrementalDetokenizer(text, (), skip_special_tokens)
    return "".join([*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()])


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_streamed_text_equals_transformers(family: Family, skip_special_tokens: bool) -> None:
    """Decode real texts and random ids.

    Byte-fallback tokens are excluded: transformers replaces a whole run of them if one byte is invalid.
    """
    choose = random.Random(1)
    vocabulary = family.theirs.get_vocab().items()
    candidates = sorted(token_id for text, token_id in vocabulary if not text.startswith("<0x"))
    outputs = [family.theirs(text).input_ids for text in family.texts()]
    outputs += [choose.choices(candidates, k=40) for _ in range(NUM_TEXTS // 4)]
    for ids in outputs:
        whole = family.theirs.decode(ids, skip_special_tokens=skip_special_tokens)
        assert family.text.decode(ids, skip_special_tokens) == whole
        assert stream(family.text, ids, skip_special_tokens) == whole


def test_chat_templates_equal_transformers(family: Family) -> None:
    """Compare the rendered text and its ids. BOS appears once, whether the template or the tokenizer adds it."""
    file = family.folder / "chat_template.json"  # as of Gemma 3; transformers reads it for processors only
    source = json.loads(file.read_text())["chat_template"] if file.exists() else None
    assert (family.text.chat_template is None) == ((source or family.theirs.chat_template) is None)
    if family.text.chat_template is None:
        return
    rendered = family.text.chat_template.render(CHAT, 10_000)
    theirs = functools.partial(
        family.theirs.apply_chat_template, CHAT, chat_template=source, add_generation_prompt=True
    )
    assert rendered == theirs(tokenize=False)
    assert list(family.text.encode(rendered, add_special_tokens=False)) == theirs(return_dict=False)


@pytest.mark.parametrize(
    ("name", "eos_tokens"),
    [
        ("llama2", ["</s>"]),
        ("llama3", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
        ("qwen2", ["<|im_end|>", "<|endoftext|>"]),
        ("gemma3", ["<eos>", "<end_of_turn>"]),
        ("phi4", ["<|endoftext|>", "<|im_end|>"]),
        ("mpt", ["<|endoftext|>"]),
    ],
)
def test_eos_tokens_of_families(name: str, eos_tokens: list[str], folders: Path) -> None:
    text = make_family(name, folders).text
    assert [text.tokenizer.id_to_token(number) for number in text.eos_token_ids] == eos_tokens
