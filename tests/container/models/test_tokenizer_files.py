"""Tokenizers without a tokenizer.json, converted by the real transformers."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from container.run.launch import environment
from lmi_server.text.tokenizer import TextModel
from tests.support.examples import examples
from tests.support.model_files import content
from tests.support.paths import child_environment
from tests.support.tokenizers import BYTE_LETTERS, GPT2_PATTERN, save_gpt2

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


class Gpt2:
    """GPT-2's byte-level BPE as its paper has it, from vocab.json and merges.txt, without any library for it."""

    def __init__(self, folder: Path) -> None:
        self.ids: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split(" ")) for line in lines if not line.startswith("#version")]
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in regex.split(r"(<\|endoftext\|>)", text):
            if part == "<|endoftext|>":
                ids.append(self.ids[part])
                continue
            for word in regex.findall(GPT2_PATTERN, part):
                ids += [self.ids[token] for token in self._merge(word)]
        return ids

    def _merge(self, word: str) -> list[str]:
        tokens = [BYTE_LETTERS[byte] for byte in word.encode()]
        while True:
            pairs = [(self.ranks.get(pair, 10**9), i) for i, pair in enumerate(itertools.pairwise(tokens))]
            rank, i = min(pairs, default=(10**9, 0))
            if rank == 10**9:
                return tokens
            # The first pair of the lowest rank; the others of that rank follow in the next turns.
            tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    save_gpt2(folder)
    return folder


def obtain(model: Path, cache: Path, log: io.StringIO | None = None) -> Path:
    return tokenizer_files.obtain(model, cache, child_environment(), LogLines(log or io.StringIO()))


@pytest.fixture(scope="module")
def converted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = content(model)
    yield obtain(model, tmp_path_factory.mktemp("cache"))
    assert content(model) == before


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_gpt2s(text: str, model: Path, converted: Path) -> None:
    tokenizer = TextModel.from_folder(model, converted)
    ids = tokenizer.encode(text)
    assert list(ids) == Gpt2(model).encode(text)
    assert tokenizer.tokenizer.decode(ids, skip_special_tokens=False) == text


@examples(200)
@given(text=st.text(max_size=40))
def test_ids_are_gpt2s_for_any_text(text: str, model: Path, converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode(text).ids == Gpt2(model).encode(text)


def compare(model: Path, converted: Path) -> None:
    """Ids, with and without special tokens, with those of transformers."""
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        theirs = AutoTokenizer.from_pretrained(model)
    text_model = TextModel.from_folder(model, converted)
    for text in TEXTS:
        text = text.replace("\x00", "")
        assert list(text_model.encode(text)) == theirs(text).input_ids
        ids = theirs(text, add_special_tokens=False).input_ids
        assert list(text_model.encode(text, add_special_tokens=False)) == ids


def test_ids_are_those_of_transformers(model: Path, converted: Path) -> None:
    compare(model, converted)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_ids_of_sentencepiece_models_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="needs sentencepiece")
    pytest.importorskip("google.protobuf", reason="needs protobuf")
    from tests.support.tokenizers import save_sentencepiece  # imports sentencepiece

    save_sentencepiece(tmp_path / "model", kind)
    compare(tmp_path / "model", obtain(tmp_path / "model", tmp_path / "cache"))


def test_two_at_once_convert_once_and_it_is_done_anew_when_a_file_changes(tmp_path: Path) -> None:
    changed, log = tmp_path / "model", io.StringIO()
    save_gpt2(changed)
    first = _obtain_twice_at_once(changed, tmp_path / "cache")
    assert obtain(changed, tmp_path / "cache", log) == first
    assert "converting the tokenizer" not in log.getvalue()
    config = json.loads((changed / "tokenizer_config.json").read_text())
    (changed / "tokenizer_config.json").write_text(json.dumps({**config, "add_prefix_space": True}))
    second = obtain(changed, tmp_path / "cache", log)
    assert second != first
    assert log.getvalue().count("converting the tokenizer") == 1
    assert TextModel.from_folder(changed, second).encode("hello") == TextModel.from_folder(
        changed, first
    ).encode(" hello")


def _obtain_twice_at_once(model: Path, cache: Path) -> Path:
    """By two processes, of which one converts."""
    call = (
        "import sys; from pathlib import Path; from container.run import launch;"
        "from container.models import tokenizer_files;"
        "from container.progress import LogLines;"
        "model, cache = map(Path, sys.argv[1:]);"
        "print(tokenizer_files.obtain(model, cache, launch.environment(), LogLines(sys.stderr)))"
    )
    command = [sys.executable, "-c", call, str(model), str(cache)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=child_environment(), **pipes) for _ in range(2)]  # type: ignore[call-overload]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert sum("converting the tokenizer of" in err and "..." in err for _, err in answers) == 1
    (folder,) = {out.strip() for out, _ in answers}
    return Path(folder)


def test_with_a_tokenizer_json_nothing_is_done_and_nothing_slow_imported(
    model: Path, converted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((converted / "tokenizer.json").read_bytes())
    assert obtain(folder, tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()
    late = {"torch", "transformers", "tokenizers"}
    call = f"import sys, container.models.tokenizer_files; print({late} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, env=child_environment(), check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no tokenizer: neither tokenizer.json nor"),
        ({"vocab.json": "{}"}, "has no tokenizer: neither tokenizer.json nor"),
        ({"tokenizer.model": "no model"}, "(tokenizer.model) cannot be converted"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence_and_leaves_nothing(
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


def test_a_cache_that_cannot_be_written_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelNotAvailable, match="set LMI_CACHE_DIR to another folder"):
        tokenizer_files.obtain(model, tmp_path / "cache", environment(), LogLines(io.StringIO()))
