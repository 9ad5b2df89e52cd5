"""Byte-level tokenizers built from GGUF metadata, compared with the structure of the published tokenizer.json."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from container.models.gguf_config import Metadata, UnknownGguf, special_ids
from container.models.gguf_tokenizer import build_tokenizer
from tests.support.gguf_models import write_tokenizer
from tests.support.script_texts import script_texts

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("pre_tokenizers.json").read_text(encoding="utf-8")
)
"""Normalizer and pre-tokenizer of a model's tokenizer.json, by the value of `tokenizer.ggml.pre`."""
CODE = (
    "def f(x):\n    return x  # 12345\n\n\tif a != b:\r\n        pass\n",
    "$x = `1` + '2'; a.b(c[1:22])->d^~|<>\\{};\r\n\r\n\n  }",
    "IT'S we'll 'RE don't\n \n  x\t\t \n",
    " 1 22 333 4444 55555,666.7 ٣٤٥ ½Ⅷ① ",
    "en 工作1314151天～！，。 에서 テスト「」 𐐀𐐨 ΑαЖжԱա Ꭰꭰ Ⴀა ﬁﬓ",
    "!!??...===---「」‘’“” \u3000\u3000",
)
UNMERGED = " xyzzyx"
"""A word in the vocabulary that no merge produces."""
PIECES = (
    *CODE,
    *(piece for text in CODE for piece in text.split(" ")),
    UNMERGED,
    "\n",
    "\r\n",
    " ",
    "  ",
    "\t",
)
TEXTS = (*script_texts(1000), *PIECES, *(first + second for first in PIECES for second in PIECES))
MIXTURES = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=10).map("".join)


def _trained() -> dict[str, Any]:
    """Return a tokenizer.json whose tokens span words of all pre-tokenizers, so that every split shows in the ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=8,
    )
    tokenizer.train_from_iterator([*script_texts(1500, seed=1), *CODE * 5], trainer)
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    vocabulary["Ġ" + UNMERGED.strip()] = len(vocabulary)
    data["model"]["ignore_merges"] = False
    data["added_tokens"] = [_control("<|endoftext|>", len(vocabulary))]
    return data


def _control(token: str, id_: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": token, "special": True, **flags}


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    return _trained()


def _published(trained: dict[str, Any], pre: str) -> Tokenizer:
    structure = {name: PUBLISHED[pre][name] for name in ("normalizer", "pre_tokenizer")}
    return Tokenizer.from_str(json.dumps(trained | structure))


def _built(trained: dict[str, Any], pre: str, folder: Path) -> Tokenizer:
    """Return the tokenizer built from a file with the trained vocabulary and merges."""
    (folder / "tokenizer.json").write_text(json.dumps(trained | {"normalizer": None}), encoding="utf-8")
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    write_tokenizer(writer, folder, pre)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = Metadata(gguf.GGUFReader(folder / "model.gguf"))
    tokens = metadata["tokenizer.ggml.tokens"]
    return build_tokenizer(metadata, tokens, special_ids(metadata, len(tokens)))


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def pair(
    request: pytest.FixtureRequest, trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer with a published structure, and the one built from GGUF metadata."""
    folder = tmp_path_factory.mktemp("gguf")
    return _published(trained, request.param), _built(trained, request.param, folder)


def _check_tokens(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    published, built = pair
    expected = published.encode(text, add_special_tokens=False).ids
    assert built.encode(text, add_special_tokens=False).ids == expected
    assert built.decode(expected) == published.decode(expected)


def test_tokens_equal_those_of_the_published_tokenizer(pair: tuple[Tokenizer, Tokenizer]) -> None:
    for text in TEXTS:
        _check_tokens(pair, text)


@given(text=MIXTURES)
def test_tokens_of_any_text_equal_those_of_the_published_tokenizer(
    pair: tuple[Tokenizer, Tokenizer], text: str
) -> None:
    _check_tokens(pair, text)


def test_every_character_is_split_as_by_the_published_tokenizer(pair: tuple[Tokenizer, Tokenizer]) -> None:
    published, built = (tokenizer.pre_tokenizer for tokenizer in pair)
    assigned = (chr(code) for code in range(sys.maxunicode + 1))
    characters = [each for each in assigned if unicodedata.category(each) not in ("Cn", "Co", "Cs")]
    for start in range(0, len(characters), 100):
        text = "".join(f"a{each}中 {each}{each}\u0301" for each in characters[start : start + 100])
        assert built.pre_tokenize_str(text) == published.pre_tokenize_str(text)


def test_every_step_of_the_published_tokenizers_changes_the_tokens_of_some_text(
    trained: dict[str, Any],
) -> None:
    """Otherwise the test above could not detect that a step is missing."""

    def ids(tokenizer: Tokenizer) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]

    for pre, structure in PUBLISHED.items():
        expected = ids(_published(trained, pre))
        steps = structure["pre_tokenizer"]["pretokenizers"]
        for place in range(len(steps) - 1):  # the last step maps bytes to letters
            fewer = {"type": "Sequence", "pretokenizers": steps[:place] + steps[place + 1 :]}
            data = trained | {"normalizer": structure["normalizer"], "pre_tokenizer": fewer}
            assert ids(Tokenizer.from_str(json.dumps(data))) != expected, (pre, steps[place])


def test_a_file_without_a_pre_tokenizer_is_reported() -> None:
    """As files from before May 2024."""
    metadata: Any = {"tokenizer.ggml.model": "gpt2"}
    with pytest.raises(
        UnknownGguf, match=r"\(got 'gpt2' without a pre-tokenizer\); allowed: 'llama', or 'gpt2' with"
    ):
        build_tokenizer(metadata, [], {})


@pytest.mark.parametrize("pre", ["viking", "superbpe", "unheard-of"])
def test_an_unsupported_pre_tokenizer_is_reported_with_those_that_are_supported(
    pre: str, trained: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnknownGguf) as caught:
        _built(trained, pre, tmp_path)
    message = str(caught.value)
    assert f"(got 'gpt2' with pre-tokenizer '{pre}'); allowed: 'llama', or 'gpt2' with one of " in message
    allowed = message.rpartition(" with one of ")[2].split(", ")
    assert {"gpt-2", "llama-bpe", "refact", "smollm", *PUBLISHED} <= set(allowed)
    assert allowed == sorted(allowed)
