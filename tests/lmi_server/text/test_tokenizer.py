"""Text models of model folders, compared with transformers on the same files."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from container.run.announce import has_chat_template
from lmi_server.text.template_files import read_templates
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import CHAT_TEMPLATE, build_model_folder
from tests.support.model_files import LFS_POINTER


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_folder)


@given(text=st.text() | st.sampled_from(["<|im_end|>x<|im_start|>", " <|endoftext|> "]))
def test_ids_equal_transformers(text_model: TextModel, reference: Any, text: str) -> None:
    assert list(text_model.encode(text)) == reference(text)["input_ids"]


def test_other_threads_run_while_a_long_text_is_tokenized(text_model: TextModel) -> None:
    """Of a few attempts one is enough, because the machine may be busy."""
    attempts = (pauses_during_tokenization(text_model) for _ in range(5))
    assert any(max(pauses) < sum(pauses) / 3 for pauses in attempts)


def pauses_during_tokenization(text_model: TextModel) -> list[float]:
    """Tokenize 1 MB in a thread. Return how long short pauses of this thread take meanwhile, in seconds."""
    thread = Thread(target=text_model.encode, args=("one two three four five six seven. " * 30_000,))
    pauses = []
    thread.start()
    while thread.is_alive():
        start = time.perf_counter()
        time.sleep(0.002)
        pauses.append(time.perf_counter() - start)
    return pauses


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()}),
    min_size=1,
    max_size=4,
)


@given(messages=MESSAGES)
def test_chat_equals_transformers(
    text_model: TextModel, reference: Any, messages: list[dict[str, str]]
) -> None:
    assert text_model.chat_template is not None
    rendered = text_model.chat_template.render(messages, 10_000)
    assert rendered == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(text_model.encode(rendered, add_special_tokens=False)) == ids


def test_special_tokens_and_eos(text_model: TextModel) -> None:
    assert text_model.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert text_model.eos_token_ids == (2, 0)
    assert text_model.max_token_chars == len("<|endoftext|>")


def configure(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


TOOL = {"content": "<tool>", "special": True, "normalized": False}
PLAIN = {"content": "<plain>", "special": False, "normalized": False}


@pytest.mark.parametrize("listed_as", [None, False, True])
@pytest.mark.parametrize(
    ("settings", "special"),
    [
        ({"additional_special_tokens": ["~"]}, {"~"}),
        ({"extra_special_tokens": ["~", "^"]}, {"~", "^"}),
        ({"added_tokens_decoder": {"1": PLAIN, "2": TOOL}}, {"<tool>"}),
        ({"added_tokens_decoder": {"1": {**TOOL, "special": False}}, "pad_token": "<tool>"}, {"<tool>"}),
        (
            {"added_tokens_decoder": {"1": TOOL}, "additional_special_tokens": ["<tool>", "~"]},
            {"<tool>", "~"},
        ),
    ],
)
def test_special_tokens_of_tokenizer_config_equal_transformers(
    listed_as: bool | None, settings: dict[str, Any], special: set[str], own_folder: Path
) -> None:
    if listed_as is not None:
        tokenizer = TextModel.from_folder(own_folder).tokenizer
        tokenizer.add_tokens([AddedToken("<tool>", special=listed_as, normalized=False)])
        tokenizer.save(str(own_folder / "tokenizer.json"))
    configure(own_folder, settings)
    text_model, reference = TextModel.from_folder(own_folder), AutoTokenizer.from_pretrained(own_folder)
    assert special <= text_model.special_tokens.keys()
    text = "one<tool>two ~ three^<plain>four"
    ids = list(text_model.encode(text))
    assert ids == reference(text)["input_ids"]
    for skip in (False, True):
        assert text_model.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("tokens", [[TOOL], {"x": TOOL}, {"1": "<tool>"}])
def test_an_invalid_added_tokens_decoder_is_refused(tokens: Any, own_folder: Path) -> None:
    (own_folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: added_tokens_decoder: "):
        TextModel.from_folder(own_folder)


@pytest.mark.parametrize(
    ("generation_config", "config", "expected"),
    [
        ({"eos_token_id": [2, 0]}, {"eos_token_id": 1}, (2, 0)),
        ({"eos_token_id": 0}, None, (0, 2)),
        ({}, {"eos_token_id": 1}, (1, 2)),
        (None, {"eos_token_id": [0, 1]}, (0, 1, 2)),
        (None, {"eos_token_id": None}, (2,)),
    ],
)
def test_sources_of_eos_token_ids(
    generation_config: dict[str, Any] | None,
    config: dict[str, Any] | None,
    expected: tuple[int, ...],
    own_folder: Path,
) -> None:
    for name, data in (("generation_config.json", generation_config), ("config.json", config)):
        (own_folder / name).unlink()
        if data is not None:
            (own_folder / name).write_text(json.dumps(data))
    assert TextModel.from_folder(own_folder).eos_token_ids == expected


MESSAGE = [{"role": "user", "content": "Hello"}]
NAMED = [{"name": "default", "template": CHAT_TEMPLATE}, {"name": "x", "template": ""}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, {"default": "a"}),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, {"default": CHAT_TEMPLATE, "x": ""}),
        (
            {"tokenizer_config.json": {"chat_template": {"default": "a", "rag": "b", "x": 1}}},
            {"default": "a", "rag": "b"},
        ),
        ({"chat_template.json": {"chat_template": "a"}}, {"default": "a"}),
        (
            {"tokenizer_config.json": {"chat_template": "a"}, "chat_template.json": {"chat_template": "b"}},
            {"default": "a"},
        ),
        (
            {
                "chat_template.jinja": "a",
                "additional_chat_templates/tool_use.jinja": "b",
                "tokenizer_config.json": {"chat_template": "c"},
            },
            {"default": "a", "tool_use": "b"},
        ),
        ({"additional_chat_templates/tool_use.jinja": "b"}, {"tool_use": "b"}),
        ({"tokenizer_config.json": {"chat_template": None}}, {}),
        ({"tokenizer_config.json": {"chat_template": [{"name": 1}, "x"]}}, {}),
        ({}, {}),
    ],
)
def test_sources_of_chat_templates(files: dict[str, Any], expected: dict[str, str], tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(data if isinstance(data, str) else json.dumps(data))
    assert read_templates(tmp_path) == expected
    assert has_chat_template(tmp_path) == ("default" in expected)


def test_templates_can_use_all_named_tokens(own_folder: Path) -> None:
    configure(own_folder, {"boi_token": "<image>", "add_bos_token": True})
    source = "{{ boi_token }}{{ eos_token }}{{ add_bos_token is defined }}"
    (own_folder / "chat_template.jinja").write_text(source)
    text = TextModel.from_folder(own_folder)
    expected = AutoTokenizer.from_pretrained(own_folder).apply_chat_template(MESSAGE, tokenize=False)
    assert text.chat_template is not None
    assert text.chat_template.render(MESSAGE, 1000) == expected == "<image><|im_end|>False"


def test_unused_templates_may_be_invalid(own_folder: Path) -> None:
    (own_folder / "additional_chat_templates").mkdir()
    (own_folder / "additional_chat_templates" / "tool_use.jinja").write_text("{% broken")
    assert TextModel.from_folder(own_folder).chat_template is not None


def test_templates_without_a_default_are_named(own_folder: Path) -> None:
    (own_folder / "chat_template.jinja").unlink()
    configure(own_folder, {"chat_template": [{"name": "rag", "template": "a"}]})
    text = TextModel.from_folder(own_folder)
    assert text.chat_template is None
    assert text.template_names == ("rag",)


def test_a_folder_without_a_chat_template(own_folder: Path) -> None:
    (own_folder / "chat_template.jinja").unlink()
    assert TextModel.from_folder(own_folder).chat_template is None


def test_truncation_and_padding_in_tokenizer_json_are_ignored(own_folder: Path) -> None:
    text = TextModel.from_folder(own_folder)
    text.tokenizer.enable_truncation(4)
    text.tokenizer.enable_padding(length=16)
    text.tokenizer.save(str(own_folder / "tokenizer.json"))
    sentence = "one two three four five six seven"
    text.tokenizer.no_truncation()
    text.tokenizer.no_padding()
    assert TextModel.from_folder(own_folder).encode(sentence) == text.encode(sentence)


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(LFS_POINTER)
    with pytest.raises(ValueError, match=r"tokenizer\.json is a Git LFS pointer, .* run git lfs pull"):
        TextModel.from_folder(tmp_path)


def test_missing_and_invalid_files_are_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        TextModel.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        TextModel.from_folder(tmp_path)
    build_model_folder(tmp_path)
    for source, problem in (("x\n{% for a in b %}", "line 2: "), ("{{ " + "(" * 3000, "nested too deeply: ")):
        (tmp_path / "chat_template.jinja").write_text(source)
        with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}: chat template[,:] {problem}"):
            TextModel.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: not valid UTF-8"):
        TextModel.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        TextModel.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 512}, 512),
        ({"vocab_size": 20}, 20),
        ({"text_config": {"vocab_size": 600}}, 600),
        ({}, None),
    ],
)
def test_the_vocabulary_is_the_models(config: dict[str, Any], expected: int | None, own_folder: Path) -> None:
    """A model often has more ids than its tokenizer, for padding. It can generate them, so prompts may have them."""
    (own_folder / "config.json").write_text(json.dumps(config))
    text = TextModel.from_folder(own_folder)
    size = AutoTokenizer.from_pretrained(own_folder).vocab_size if expected is None else expected
    assert text.vocabulary_size == size
    if size > 400:
        assert text.decode((size - 1,)) == ""
