"""Tokenizers without a tokenizer.json, converted with the real transformers."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from container.run.launch import environment
from lmi_server.text.tokenizer import TextModel
from tests.support.model_files import content
from tests.support.paths import child_environment
from tests.support.tokenizers import save_gpt2

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
    "a\x00b\u200d\ufeffc",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    save_gpt2(folder)
    return folder


def obtain(model: Path, cache: Path, log: io.StringIO | None = None) -> Path:
    """Convert with torch blocked, because importing it would take most of the time."""
    cache.mkdir(exist_ok=True)
    (cache / "torch.py").write_text("raise AssertionError('torch is imported')")
    env = child_environment()
    env["PYTHONPATH"] = f"{cache}:{env['PYTHONPATH']}"
    return tokenizer_files.obtain(model, cache, env, LogLines(log or io.StringIO()))


@pytest.fixture(scope="module")
def converted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = content(model)
    yield obtain(model, tmp_path_factory.mktemp("cache"))
    assert content(model) == before


def compare(model: Path, converted: Path) -> None:
    """Compare ids with those of transformers, with and without special tokens."""
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers
        theirs = AutoTokenizer.from_pretrained(model)
    text_model = TextModel.from_folder(model, converted)
    for text in TEXTS:
        text = text.replace("\x00", "")
        assert list(text_model.encode(text)) == theirs(text).input_ids
        ids = theirs(text, add_special_tokens=False).input_ids
        assert list(text_model.encode(text, add_special_tokens=False)) == ids


def test_ids_equal_transformers(model: Path, converted: Path) -> None:
    compare(model, converted)


@pytest.mark.parametrize("kind", ["bpe", pytest.param("unigram", marks=pytest.mark.long)])
def test_ids_of_sentencepiece_models_equal_transformers(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="needs sentencepiece")
    pytest.importorskip("google.protobuf", reason="needs protobuf")
    from tests.support.tokenizers import save_sentencepiece  # imports sentencepiece

    save_sentencepiece(tmp_path / "model", kind)
    compare(tmp_path / "model", obtain(tmp_path / "model", tmp_path / "cache"))


def test_a_tokenizer_is_converted_once_and_again_when_a_file_changes(
    model: Path, converted: Path, tmp_path: Path
) -> None:
    changed, log, cache, first = tmp_path / "model", io.StringIO(), converted.parents[1], converted
    shutil.copytree(model, changed)
    assert obtain(changed, cache, log) == first
    assert "converting the tokenizer" not in log.getvalue()
    config = json.loads((changed / "tokenizer_config.json").read_text())
    (changed / "tokenizer_config.json").write_text(json.dumps({**config, "add_prefix_space": True}))
    second = obtain(changed, cache, log)
    assert second != first
    assert log.getvalue().count("converting the tokenizer") == 1
    assert TextModel.from_folder(changed, second).encode("hello") == TextModel.from_folder(
        changed, first
    ).encode(" hello")


def test_with_a_tokenizer_json_nothing_is_converted_or_imported(
    model: Path, converted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((converted / "tokenizer.json").read_bytes())
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
    model = tmp_path / "model"
    model.mkdir()
    newline = "Ċ"
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), newline * 2]
    numbered = {text: number for number, text in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(numbered, [(newline, newline)]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (model / "config.json").write_text('{"model_type": "llama"}')
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
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(tokenizer_files, "_convert", lambda model, part, environ: None)
    assert (obtain(model, tmp_path / "cache") == model) == unchanged


def test_a_tokenizer_json_that_cannot_be_converted_is_used_unconverted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: Path, part: Path, environ: object) -> None:
        raise ModelNotAvailable("it cannot be converted")

    model, log = tmp_path / "model", io.StringIO()
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    monkeypatch.setattr(tokenizer_files, "_convert", fails)
    assert obtain(model, tmp_path / "cache", log) == model
    assert "note: it cannot be converted; using tokenizer.json unconverted" in log.getvalue()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no tokenizer; expected tokenizer.json, "),
        ({"vocab.json": "{}"}, "has no tokenizer; expected tokenizer.json, "),
        ({"tokenizer.model": "no model"}, "(tokenizer.model) cannot be converted"),
    ],
)
def test_a_failed_conversion_is_a_one_line_error_and_leaves_no_files(
    files: dict[str, str], words: str, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name, text in {"config.json": '{"model_type": "llama"}', **files}.items():
        (model / name).write_text(text)
    with pytest.raises(ModelNotAvailable) as caught:
        obtain(model, tmp_path / "cache")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").glob("tokenizers/[!.]*")) == []
    assert list((tmp_path / "cache").glob("tokenizers/.*.part-*")) == []


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    for name in ("sentencepiece", "google"):
        (tmp_path / "hidden" / name).mkdir(parents=True)
        (tmp_path / "hidden" / name / "__init__.py").write_text("raise ModuleNotFoundError(__name__)")
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.model").write_bytes(b"pieces")
    env = child_environment()
    env["PYTHONPATH"] = f"{tmp_path / 'hidden'}:{env['PYTHONPATH']}"
    with pytest.raises(ModelNotAvailable, match="pip install sentencepiece protobuf"):
        tokenizer_files.obtain(model, tmp_path / "cache", env, LogLines(io.StringIO()))


def test_a_cache_that_cannot_be_written_is_an_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelNotAvailable, match="set LMI_CACHE_DIR to another folder"):
        tokenizer_files.obtain(model, tmp_path / "cache", environment(), LogLines(io.StringIO()))
