"""Tokenizers without a tokenizer.json, converted with the real transformers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from container.run.launch import environment
from lmi_server.text.tokenizer import TextModel
from tests.support.model_files import LFS_POINTER, content
from tests.support.paths import child_environment
from tests.support.tokenizers import save_gpt2, save_sentencepiece

TEXTS = [
    "",
    "hello world",
    "  leading, trailing  ",
    "don't can't I'LL",
    "naïve café – “quotes” …",
    "日本語 ok 😀👩‍👩‍👧",
    "def f(x):\n\treturn x\n\n\n",
    "1234567890 3.14",
    "<|endoftext|>hello<|endoftext|>",
    "ab\u200d\ufeffc",
]


def write(folder: Path, **files: str) -> Path:
    """Write these files with the suffix `.json`."""
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def obtain(model: Path, cache: Path, log: io.StringIO | None = None) -> Path:
    """Convert with torch blocked, because importing it would take most of the time.

    The converting process finds the packages in `cache` first.
    """
    cache.mkdir(exist_ok=True)
    (cache / "torch.py").write_text("raise AssertionError('torch is imported')")
    env = child_environment()
    env["PYTHONPATH"] = f"{cache}:{env['PYTHONPATH']}"
    return tokenizer_files.obtain(model, cache, env, LogLines(log or io.StringIO()))


@pytest.mark.parametrize("save", [save_gpt2, save_sentencepiece], ids=["gpt2", "sentencepiece"])
def test_ids_equal_transformers(save: Callable[[Path], object], tmp_path: Path) -> None:
    """With and without special tokens."""
    from transformers import AutoTokenizer

    model = tmp_path / "model"
    save(model)
    before = content(model)
    converted = obtain(model, tmp_path / "cache")
    assert content(model) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers
        theirs = AutoTokenizer.from_pretrained(model)
    text_model = TextModel.from_folder(model, converted)
    for text in TEXTS:
        assert list(text_model.encode(text)) == theirs(text).input_ids
        ids = theirs(text, add_special_tokens=False).input_ids
        assert list(text_model.encode(text, add_special_tokens=False)) == ids


def test_default_tokens_of_a_tokenizer_class(tmp_path: Path) -> None:
    """As of DialoGPT, whose tokenizer_config.json names no tokens. Null there means no token."""
    template = (
        "{{ bos_token }}|{{ unk_token }}|{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    model = tmp_path / "model"
    save_gpt2(model)
    config = {"chat_template": template, "bos_token": None, "unk_token": "a"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    converted = obtain(model, tmp_path / "cache")
    named = json.loads((converted / "special_tokens_map.json").read_text())
    assert named == {"eos_token": "<|endoftext|>", "unk_token": "a"}
    text = TextModel.from_folder(model, converted)
    assert text.chat_template is not None
    assert text.chat_template.render([{"role": "user", "content": "Hi"}], 99) == "|a|Hi<|endoftext|>"
    assert text.eos_token_ids == (0,)


def test_a_tokenizer_is_converted_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(model: Path, part: Path, environ: object) -> None:
        converted.append(model)
        (part / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(tokenizer_files, "_convert", convert)
    converted: list[Path] = []
    files, log = {"vocab": "{}", "tokenizer_config": '{"a": 1}'}, io.StringIO()
    models = [write(tmp_path / name, **files) for name in ("first", "copy")]
    models.append(write(tmp_path / "other", **files | {"tokenizer_config": '{"a": 2}'}))
    for model in models:
        (model / "merges.txt").write_text("")
    first, copy, other = (obtain(model, tmp_path / "cache", log) for model in models)
    assert first == copy != other
    assert converted == [models[0], models[2]]
    assert log.getvalue().count("converting the tokenizer") == 2


def test_with_a_tokenizer_json_nothing_is_converted_or_imported(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tokenizer="{}")
    assert obtain(folder, tmp_path / "cache") == folder
    assert not (tmp_path / "cache" / "tokenizers").exists()
    slow_imports = {"torch", "transformers", "tokenizers"}
    program = f"import sys, container.models.tokenizer_files; print({slow_imports} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=child_environment(), check=True
    )
    assert result.stdout.strip() == "set()"


def test_a_gpt2_tokenizer_keeps_the_pre_tokenizer_of_its_tokenizer_json(tmp_path: Path) -> None:
    """As in SmolLM2. GPT-2's pre-tokenizer would split the two newlines before a digit."""
    newline = "Ċ"
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), newline * 2]
    numbered = {text: number for number, text in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(numbered, [(newline, newline)]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    model = write(
        tmp_path / "model",
        tokenizer=tokenizer.to_str(),
        tokenizer_config='{"tokenizer_class": "GPT2Tokenizer"}',
        config='{"model_type": "llama"}',
    )
    text = TextModel.from_folder(model, obtain(model, tmp_path / "cache"))
    expected = [numbered[letter] for letter in ("a", newline * 2, "1")]
    assert tokenizer.encode("a\n\n1").ids == expected
    assert list(text.encode("a\n\n1")) == expected


@pytest.mark.parametrize(
    ("tokenizer_config", "config", "unchanged"),
    [
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {}, True),
        ({"tokenizer_class": "BloomTokenizerFast"}, {}, True),
        ({"tokenizer_class": "LlamaTokenizer"}, {}, False),
        ({"tokenizer_class": "LlamaTokenizerFast"}, {"tokenizer_class": "TokenizersBackend"}, False),
        ({"tokenizer_class": "GPT2TokenizerFast"}, {}, True),
        ({}, {"tokenizer_class": "Qwen2Tokenizer"}, False),
        ({}, {}, True),
    ],
)
def test_a_tokenizer_json_is_converted_if_its_class_would_build_another(
    tokenizer_config: dict[str, str],
    config: dict[str, str],
    unchanged: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {"tokenizer_config": json.dumps(tokenizer_config), "config": json.dumps(config)}
    model = write(tmp_path / "model", tokenizer="{}", **files)
    monkeypatch.setattr(tokenizer_files, "_convert", lambda model, part, environ: None)
    assert (obtain(model, tmp_path / "cache") == model) == unchanged


def test_a_tokenizer_json_that_cannot_be_converted_is_used_unconverted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: Path, part: Path, environ: object) -> None:
        raise ModelNotAvailable("it cannot be converted")

    log, tokenizer_config = io.StringIO(), '{"tokenizer_class": "LlamaTokenizer"}'
    model = write(tmp_path / "model", tokenizer="{}", tokenizer_config=tokenizer_config)
    monkeypatch.setattr(tokenizer_files, "_convert", fails)
    assert obtain(model, tmp_path / "cache", log) == model
    assert "note: it cannot be converted; using tokenizer.json unconverted" in log.getvalue()


@pytest.mark.parametrize("file", ["README.md", "vocab.json"])
def test_a_model_without_a_tokenizer_is_refused(file: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model", config='{"model_type": "llama"}')
    (model / file).write_text("{}")
    with pytest.raises(
        ModelNotAvailable, match=r"has no tokenizer; expected tokenizer\.json, .* tekken\.json, "
    ):
        obtain(model, tmp_path / "cache")


def test_a_failed_conversion_is_a_one_line_error_and_leaves_no_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "transformers").mkdir(parents=True)
    error = r"print('noise'); raise ValueError('not\na model')"
    (cache / "transformers" / "__init__.py").write_text(error)
    model = write(tmp_path / "model")
    (model / "tokenizer.model").write_bytes(b"pieces")
    with pytest.raises(
        ModelNotAvailable,
        match=r"\(tokenizer.model\) cannot be converted: not a model; put a tokenizer.json into",
    ) as caught:
        obtain(model, cache)
    assert "\n" not in str(caught.value)
    assert list(cache.glob("tokenizers/[!.]*")) == []
    assert list(cache.glob("tokenizers/.*.part-*")) == []


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    model = write(tmp_path / "model")
    (model / "tokenizer.model").write_bytes(b"pieces")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelNotAvailable, match="set LMI_CACHE_DIR to another folder"):
        tokenizer_files.obtain(model, tmp_path / "cache", environment(), LogLines(io.StringIO()))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_git_lfs_pointer_is_refused_before_the_start(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(LFS_POINTER)
    sentence = tokenizer_files.refusal(tmp_path)
    assert sentence is not None
    assert f"{name} is a Git LFS pointer" in sentence
    with pytest.raises(ModelNotAvailable) as caught:
        tokenizer_files.obtain(tmp_path, tmp_path / "cache", {}, LogLines(io.StringIO()))
    assert str(caught.value) == sentence
