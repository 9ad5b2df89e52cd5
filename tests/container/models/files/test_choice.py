"""Selection of the files to fetch, and rejection of names that leave the model folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from container.models import files as model_files
from container.models.errors import ModelNotAvailable
from container.models.files import choice
from container.models.files.remote import RemoteFile, Selection, Snapshot
from lmi_server.config import ModelSource

_PIECES = ["a", ".", "..", "/", "\\", "\0", "\n", "é", " ", "~", "x" * 200]
_NAMES = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)


def snapshot(*paths: str, size: int = 10) -> Snapshot:
    return Snapshot("test://model", tuple(RemoteFile(path, size, "1") for path in paths))


def selected(*paths: str, gguf: str = "") -> set[str]:
    """Return the chosen files besides config.json."""
    listed = replace(snapshot("config.json", *paths), selection=Selection(gguf=gguf))
    return {file.path for file in choice.choose(listed).files} - {"config.json"}


@given(_NAMES)
@example("a/../../b")
@example("/etc/passwd")
@example("a//b")
def test_a_joined_path_is_inside_its_folder(path: str) -> None:
    folder = Path("/cache/model")
    try:
        joined = choice.safe_join(folder, path)
    except ModelNotAvailable:
        return
    assert os.path.normpath(joined) == str(joined)
    assert joined.is_relative_to(folder)
    assert joined != folder


@pytest.mark.parametrize("path", ["config.json", "a b.json", "größe.txt", ".hidden.json", "nested/x.json"])
def test_ordinary_names_are_accepted(path: str) -> None:
    assert choice.safe_join(Path("/cache"), path) == Path("/cache") / path


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../x", "a\\x", "a\nb", "", "a/", "x" * 256, "y/" * 600 + "x"]
)
def test_a_listing_with_an_unsafe_name_is_rejected(path: str) -> None:
    with pytest.raises(ModelNotAvailable, match="file name not allowed"):
        choice.choose(snapshot("config.json", "model.safetensors", path))


@pytest.mark.parametrize(
    ("needed", "others"),
    [
        (
            {
                "model.safetensors",
                "tokenizer.json",
                "tokenizer.model",
                "merges.txt",
                "chat_template.jinja",
                "x.py",
            },
            {"pytorch_model.bin", "README.md", ".gitattributes", "onnx/model.safetensors", "src/train.py"},
        ),
        (
            {"model.safetensors", f"{choice.TEMPLATES}tool_use.jinja", f"{choice.TEMPLATES}rag.jinja"},
            {f"{choice.TEMPLATES}notes.md", f"{choice.TEMPLATES}a/b.jinja", "other/tool_use.jinja"},
        ),
        ({"model.safetensors"}, {"consolidated.safetensors", choice.INDEX}),
        ({"x.safetensors", "y.safetensors"}, set()),
        ({"model.safetensors"}, {"x.gguf"}),
        ({"x.gguf"}, {"mmproj-x.gguf", "sub/y.gguf"}),
        ({"model.safetensors"}, {"gguf.json"}),
    ],
    ids=[
        "small files",
        "templates",
        "model.safetensors",
        "other safetensors",
        "safetensors, not GGUF",
        "GGUF",
        "no index of GGUF files",
    ],
)
def test_only_files_that_serving_needs_are_chosen(needed: set[str], others: set[str]) -> None:
    assert selected(*needed, *others) == needed


@pytest.mark.parametrize(
    ("paths", "selection", "words"),
    [
        (["model.safetensors"], {}, "no config.json; found: model.safetensors"),
        ([], {}, "no config.json; found: no files"),
        (["config.json", "a.bin", "b.bin", "c.bin", "d.bin"], {}, "only a.bin, b.bin, c.bin and 1 more"),
        (["config.json", "model.h5"], {}, "only model.h5; weights must be safetensors"),
        (["a.gguf", "b.gguf"], {}, "has several GGUF files; set option.model_id to one of: a.gguf, b.gguf"),
        (["a-00001-of-00002.gguf"], {}, "is incomplete: missing a-00002-of-00002.gguf"),
        (["config.json", "x/model.safetensors"], {}, "no .safetensors file; found: config.json"),
        (["a.gguf"], {"gguf": "Q5_0"}, "has no GGUF file Q5_0; set option.model_id to one of: a.gguf"),
        (
            ["a.gguf"],
            {"gguf": "a.gguf", "with_weights": False},
            "can only be downloaded whole; set option.load_format=auto",
        ),
        (
            ["a.gguf"],
            {"gguf": "a.gguf", "streamed": True},
            "can only be downloaded whole; set option.load_format=auto",
        ),
    ],
)
def test_a_listing_without_the_model_is_rejected(
    paths: list[str], selection: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelNotAvailable) as caught:
        choice.choose(replace(snapshot(*paths), selection=Selection(**selection)))
    assert words in str(caught.value)


BF16 = {"BF16/x-BF16-00001-of-00002.gguf", "BF16/x-BF16-00002-of-00002.gguf"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x-Q8_0.gguf", {"x-Q8_0.gguf"}),
        ("q8_0", {"x-Q8_0.gguf"}),
        ("UD-Q4_K_XL", {"x-UD-Q4_K_XL.gguf"}),
        ("BF16", {*BF16, "BF16/chat_template.jinja"}),
        ("BF16/x-BF16-00002-of-00002.gguf", {*BF16, "BF16/chat_template.jinja"}),
    ],
)
def test_the_selected_gguf_file_and_the_small_files_beside_it_are_fetched(
    name: str, expected: set[str]
) -> None:
    names = ["x-Q8_0.gguf", "x-Q4_K_M.gguf", "x-UD-Q4_K_XL.gguf", "mmproj-BF16.gguf", "model.safetensors"]
    small = ["tokenizer.json", "README.md", choice.INDEX, "Q4_0/tokenizer.json"]
    beside = ["BF16/chat_template.jinja", "BF16/README.md", "BF16/more/tokenizer.json"]
    assert selected(*names, *BF16, *small, *beside, gguf=name) == {*expected, "tokenizer.json"}


def test_sizes_and_file_counts_are_limited() -> None:
    with pytest.raises(ModelNotAvailable, match="at most"):
        choice.choose(snapshot("config.json", "model.safetensors", size=choice.MAX_SMALL_BYTES + 1))
    big = RemoteFile("model.safetensors", choice.MAX_TOTAL_BYTES, "1")
    with pytest.raises(ModelNotAvailable, match=r"too (many|large)"):
        choice.choose(Snapshot("test://model", (*snapshot("config.json").files, big)))
    paths = [f"{number}.safetensors" for number in range(choice.MAX_FILES)]
    with pytest.raises(ModelNotAvailable, match="at most"):
        choice.choose(snapshot("config.json", *paths))


def test_handlers_get_all_files_and_only_names_and_totals_are_checked() -> None:
    everything = Selection(everything=True)
    paths = ["model.safetensors", "folder/x.bin", "a.gguf", "b.gguf", "code.py", choice.INDEX]
    listed = replace(snapshot(*paths, size=choice.MAX_SMALL_BYTES + 1), selection=everything)
    assert choice.choose(listed) == listed
    with pytest.raises(ModelNotAvailable, match="file name not allowed"):
        choice.choose(replace(snapshot("../x"), selection=everything))
    with pytest.raises(ModelNotAvailable, match=r"too (many|large)"):
        choice.choose(replace(snapshot("x.bin", "y.bin", size=choice.MAX_TOTAL_BYTES), selection=everything))


def test_the_digest_depends_on_content_and_source() -> None:
    one = snapshot("config.json", "model.safetensors")
    assert one.digest == snapshot("model.safetensors", "config.json").digest
    others = [
        snapshot("config.json"),
        snapshot("config.json", "model.safetensors", size=11),
        Snapshot("test://another", one.files),
        Snapshot(one.name, (one.files[0], RemoteFile("model.safetensors", 10, "2"))),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize(
    ("model_id", "shown"),
    [
        ("https://user:word@host/m?X-Amz-Signature=abc", "option.model_id=https://host/m?...: 'https://' is"),
        ("s3://KEY:word@bucket/m", "option.model_id='s3://bucket/m': 'bucket' is not a bucket name"),
    ],
)
def test_keys_in_an_address_are_not_shown(model_id: str, shown: str) -> None:
    text = model_files.refusal(ModelSource(model_id=model_id))
    assert text is not None
    assert shown in text
    assert not any(secret in text for secret in ("word", "abc", "KEY"))


@pytest.mark.parametrize("name", ["train.json", "corpus.txt", "optimizer_state.json"])
def test_large_files_that_serving_does_not_read_are_left_out(name: str) -> None:
    large = RemoteFile(name, 400 << 20, "1")
    listed = snapshot("config.json", "model.safetensors", "tokenizer.json")
    chosen = choice.choose(replace(listed, files=(*listed.files, large)))
    assert chosen.files == listed.files
    small = replace(large, size=10)
    assert small in choice.choose(replace(listed, files=(*listed.files, small))).files


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.txt", "merges.txt", "tokenizer.model", "chat_template.jinja"]
)
def test_large_files_that_serving_reads_are_refused(name: str) -> None:
    large = RemoteFile(name, 400 << 20, "1")
    listed = snapshot("config.json", "model.safetensors")
    with pytest.raises(ModelNotAvailable, match=f"{name} is too large"):
        choice.choose(replace(listed, files=(*listed.files, large)))
