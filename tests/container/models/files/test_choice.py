"""Which files are fetched, and that no name leads out of the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from container.models.errors import ModelNotAvailable
from container.models.files import choice
from container.models.files.remote import RemoteFile, Selection, Snapshot

_PIECES = ["a", ".", "..", "/", "\\", "\0", "\n", "é", " ", "~", "x" * 200]
_NAMES = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)


def snapshot(*paths: str, with_code: bool = False, size: int = 10) -> Snapshot:
    files = tuple(RemoteFile(path, size, "1") for path in paths)
    return Snapshot("test://model", files, Selection(with_code))


def chosen(*paths: str, with_code: bool = False) -> set[str]:
    files = choice.choose(snapshot("config.json", *paths, with_code=with_code)).files
    return {file.path for file in files} - {"config.json"}


@given(_NAMES)
@example("a/../../b")
@example("/etc/passwd")
@example("a//b")
def test_a_joined_path_is_below_its_folder(path: str) -> None:
    folder = Path("/cache/model")
    try:
        joined = choice.safe_join(folder, path)
    except ModelNotAvailable:
        return
    assert os.path.normpath(joined) == str(joined)
    assert joined.is_relative_to(folder)
    assert joined != folder


@pytest.mark.parametrize("path", ["config.json", "a b.json", "größe.txt", ".hidden.json", "nested/x.json"])
def test_ordinary_names_are_taken(path: str) -> None:
    assert choice.safe_join(Path("/cache"), path) == Path("/cache") / path


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../x", "a\\x", "a\nb", "", "a/", "x" * 256, "y/" * 600 + "x"]
)
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ModelNotAvailable, match="is refused"):
        choice.choose(snapshot("config.json", "model.safetensors", path))


def test_serving_needs_weights_configurations_and_tokenizers() -> None:
    needed = {"model.safetensors", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja"}
    others = {"pytorch_model.bin", "README.md", ".gitattributes", "onnx/model.safetensors", "modeling_x.py"}
    assert chosen(*needed, *others) == needed
    assert chosen(*needed, *others, with_code=True) == needed | {"modeling_x.py"}


def test_named_chat_templates_are_files_of_a_folder() -> None:
    templates = {f"{choice.TEMPLATES}{name}.jinja" for name in ("tool_use", "rag")}
    others = {f"{choice.TEMPLATES}notes.md", f"{choice.TEMPLATES}a/b.jinja", "other/tool_use.jinja"}
    assert chosen("model.safetensors", *templates, *others) == {"model.safetensors", *templates}


def test_the_one_file_of_weights_is_the_model() -> None:
    kept = chosen("model.safetensors", "consolidated.safetensors", choice.INDEX)
    assert kept == {"model.safetensors"}
    assert chosen("x.safetensors", "y.safetensors") == {"x.safetensors", "y.safetensors"}


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["model.safetensors"], "no config.json; there is model.safetensors"),
        ([], "no config.json; there is nothing"),
        (["config.json", "a.bin", "b.bin", "c.bin", "d.bin"], "but a.bin, b.bin, c.bin and 1 more"),
        (["config.json", "model.gguf"], "but model.gguf: weights are loaded from safetensors only"),
        (["config.json", "x/model.safetensors"], "no .safetensors file; there is config.json"),
    ],
)
def test_what_is_no_model_is_said_in_one_sentence(paths: list[str], words: str) -> None:
    with pytest.raises(ModelNotAvailable) as caught:
        choice.choose(snapshot(*paths))
    assert words in str(caught.value)


def test_sizes_and_numbers_are_bounded() -> None:
    with pytest.raises(ModelNotAvailable, match="at most"):
        choice.choose(snapshot("config.json", "model.safetensors", size=choice.MAX_SMALL_BYTES + 1))
    big = RemoteFile("model.safetensors", choice.MAX_TOTAL_BYTES, "1")
    with pytest.raises(ModelNotAvailable, match="more than"):
        choice.choose(Snapshot("test://model", (*snapshot("config.json").files, big)))
    many = [f"{number}.safetensors" for number in range(choice.MAX_FILES)]
    with pytest.raises(ModelNotAvailable, match="at most"):
        choice.choose(snapshot("config.json", *many))


def test_a_digest_names_content_and_place() -> None:
    one = snapshot("config.json", "model.safetensors")
    assert one.digest == snapshot("model.safetensors", "config.json").digest
    others = [
        snapshot("config.json"),
        snapshot("config.json", "model.safetensors", size=11),
        Snapshot("test://another", one.files),
        Snapshot(one.name, (one.files[0], RemoteFile("model.safetensors", 10, "2"))),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
