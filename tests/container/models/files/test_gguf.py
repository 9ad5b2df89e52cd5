"""Local GGUF files as models: their descriptions, and unsupported files."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer

from container.explain.check import check
from container.explain.resolve import CannotServe, resolve
from container.machine import Machine
from container.models import files as model_files
from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.models.gguf_config import Metadata, UnknownGguf, read_config
from container.models.gguf_describe import describe, write_texts
from container.progress import LogLines
from engines.config import MpiEngineConfig
from engines.models.gguf_index import read_index
from lmi_server.config import EngineOptions, LmiConfig, ModelSource
from lmi_server.text.template_files import read_templates
from tests.support.gguf_models import SHAPE, save_gguf, write_gguf
from tests.support.paths import child_environment
from tests.support.script_texts import script_texts
from tests.support.tiny_models import save_model
from tests.support.tokenizer_families import FAMILIES

NEEDED = ("attention.head_count", "block_count", "context_length", "embedding_length", "feed_forward_length")
MACHINE = Machine(cpu_count=2, memory_available_bytes=8 << 30)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _, _ = save_gguf(tmp_path_factory.mktemp("gguf"), "llama", Kind.Q4_0)
    return path


def _obtain(source: ModelSource, cache: Path) -> Path:
    return model_files.obtain(source, LogLines(io.StringIO()), cache)


def test_a_gguf_file_or_its_folder_is_a_model(file: Path, tmp_path: Path) -> None:
    sources = [
        ModelSource(model_id=str(file)),
        ModelSource(model_id=str(file.parent)),
        ModelSource(model_dir=str(file.parent)),
    ]
    assert model_files.locate(sources[0], tmp_path) is None
    folder = _obtain(sources[0], tmp_path)
    assert {model_files.locate(source, tmp_path) for source in sources} == {folder}
    assert {_obtain(source, tmp_path) for source in sources} == {folder}
    index = read_index(folder)
    assert index is not None
    assert (index.folder, list(index.sizes), index.dtype) == (str(file.parent), [file.name], "float32")
    assert tokenizer_files.refusal(folder) is None
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] == SHAPE["num_key_value_heads"]


def test_a_file_is_described_again_when_it_or_its_tokenizer_changes(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "here" / "model.gguf"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    copy.with_name("tokenizer.json").write_text("{}")
    source = ModelSource(model_id=str(copy))
    first = _obtain(source, tmp_path)
    copy.with_name("tokenizer.json").write_text('{"other": 1}')
    assert model_files.locate(source, tmp_path) is None
    second = _obtain(source, tmp_path)
    assert second != first
    assert (second / "tokenizer.json").read_text() == '{"other": 1}'


def test_a_link_to_nothing_beside_a_gguf_file_is_ignored(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "here" / "model.gguf"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    copy.with_name("tokenizer.json").write_text("{}")
    for name in ("tokenizer_config.json", "notes.json", "chat_template.jinja"):
        copy.with_name(name).symlink_to(tmp_path / "missing")
    source = ModelSource(model_id=str(copy))
    assert model_files.locate(source, tmp_path) is None
    assert _obtain(source, tmp_path) == model_files.locate(source, tmp_path)


def test_only_engine_mpi_serves_gguf_files(file: Path, tmp_path: Path) -> None:
    source = ModelSource(model_id=str(file))
    folder = _obtain(source, tmp_path)
    options = EngineOptions(kv_cache_gb=0.1)
    resolved = resolve(LmiConfig(engine="MPI", source=source, options=options), folder, MACHINE)
    assert isinstance(resolved.config, MpiEngineConfig)
    assert resolved.config.model.path == str(folder)
    with pytest.raises(CannotServe, match="GGUF file, which engine=Python does not read; set engine=MPI"):
        resolve(LmiConfig(engine="Python", source=source, options=options), folder, MACHINE)


def test_lmi_check_reports_that_the_metadata_is_read_first(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMI_CACHE_DIR", str(tmp_path / "cache"))
    properties = tmp_path / "serving.properties"
    properties.write_text(f"engine=MPI\noption.model_id={file}\noption.load_format=gguf\n")
    before = check(properties, {}, MACHINE)
    assert before.can_serve, before.reasons
    assert before.model.endswith("a GGUF file; `lmi serve` or `lmi prepare` reads its metadata once")
    _obtain(ModelSource(model_id=str(file)), tmp_path / "cache")
    assert ": ready in " in check(properties, {}, MACHINE).model


def test_one_of_several_files_must_be_selected(file: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(file.read_bytes())
    source = ModelSource(model_id=str(tmp_path))
    message = (
        f"{tmp_path} has several GGUF files; set option.model_id to the path of one of them: a.gguf, b.gguf"
    )
    assert model_files.refusal(source) == message
    with pytest.raises(ModelNotAvailable, match="has several GGUF files"):
        _obtain(source, tmp_path / "cache")


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    first, _, _ = save_gguf(tmp_path, "llama", Kind.Q4_0, tensors_per_file=5)
    files = sorted(first.parent.glob("*.gguf"))
    assert len(files) > 2
    folder = _obtain(ModelSource(model_id=str(first.parent)), tmp_path)
    assert _obtain(ModelSource(model_id=str(files[2])), tmp_path) == folder
    index = read_index(folder)
    assert index is not None
    assert list(index.sizes) == [file.name for file in files]
    files[1].unlink()
    with pytest.raises(ModelNotAvailable, match=f"{first.parent} is incomplete: missing {files[1].name}"):
        _obtain(ModelSource(model_id=str(first)), tmp_path)
    assert f"{files[1]} cannot be read" in index.problem


@pytest.mark.parametrize("size", [100, 0.5])
def test_a_truncated_file_is_rejected(file: Path, tmp_path: Path, size: float) -> None:
    content = file.read_bytes()
    truncated = tmp_path / "model.gguf"
    truncated.write_bytes(content[: int(size if size > 1 else size * len(content))])
    with pytest.raises(
        ModelNotAvailable, match=rf"{truncated} cannot be served: .* is not a complete GGUF file"
    ):
        _obtain(ModelSource(model_id=str(truncated)), tmp_path)


def test_an_array_longer_than_the_memory_is_rejected(tmp_path: Path) -> None:
    name = b"general.architecture"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(name)) + name
    (tmp_path / "a.gguf").write_bytes(head + struct.pack("<IIQ", 9, 0, 1 << 60))  # bytes without an end
    script = "from container.models import gguf_describe as g; exit(g.run(g.describe, 250 << 20))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.gguf"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=child_environment(),
    )
    assert done.stderr == f"{tmp_path / 'a.gguf'} is not a complete GGUF file: its metadata fill the memory\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "mamba"}, "unsupported architecture .got mamba.; allowed: gemma, gemma2"),
        (
            {f"llama.{key}": 8 for key in (*NEEDED, "expert_count")},
            "the GGUF file has one tensor per expert",
        ),
        ({"split.count": 3}, "is split into 3 GGUF files .got 1"),
        ({}, "has no field 'llama.attention.head_count'"),
        (
            {
                **{f"llama.{key}": 8 for key in NEEDED},
                "tokenizer.ggml.tokens": ["a", "b"],
                "tokenizer.ggml.token_type": [1],
            },
            "has 2 tokens, but types of 1",
        ),
    ],
)
def test_unsupported_metadata_is_reported(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownGguf, match=words):
        describe(_write(tmp_path, fields), tmp_path)


def test_a_file_without_tensors_is_rejected(tmp_path: Path) -> None:
    file = _write(tmp_path, {f"llama.{key}": 8 for key in NEEDED}, tensors=())
    with pytest.raises(UnknownGguf, match=r"the GGUF file has no tensor 'token_embd\.weight'"):
        describe(file, tmp_path)


def _write(folder: Path, fields: Mapping[str, Any], tensors: Sequence[str] = ("token_embd.weight",)) -> Path:
    """Write a file with these metadata fields and tensors."""
    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(file, str(fields.get("general.architecture", "llama")))
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in fields.items():
        if key != "general.architecture":
            add[type(value)](key, value)
    for name in tensors:
        writer.add_tensor(name, np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _rope_scaling(folder: Path, fields: Mapping[str, str | float]) -> object:
    """Return the `rope_scaling` in the config.json of a model with these `llama.rope.` metadata fields."""
    rope = {f"llama.rope.{key}": value for key, value in fields.items()}
    file = _write(folder, {f"llama.{key}": 8 for key in NEEDED} | rope)
    return read_config(Metadata(gguf.GGUFReader(file))).get("rope_scaling")


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({}, None),
        ({"scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 0.0}, None),
        ({"scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scaling.type": "yarn", "scaling.factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
    ],
)
def test_rope_scaling_equals_llama_cpp(
    fields: dict[str, str | float], scaling: dict[str, str | float] | None, tmp_path: Path
) -> None:
    """`scale_linear` is the key in files of 2023."""
    assert _rope_scaling(tmp_path, fields) == scaling


@pytest.mark.parametrize("key", ["scale_linear", "scaling.factor"])
def test_a_rope_scaling_that_would_shorten_the_context_is_rejected(key: str, tmp_path: Path) -> None:
    """The first files with a scaling factor contained its inverse."""
    with pytest.raises(UnknownGguf, match=r"rope scaling factor below 1 \(got 0\.25\)"):
        _rope_scaling(tmp_path, {key: 0.25})


@pytest.mark.parametrize(
    ("family", "pre"),
    [
        *(("llama3", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2"), ("gpt2", "gpt-2")),
        *((family, "") for family in ("mistral", "mistral_v3", "llama2", "phi3", "gemma2")),
    ],
)
def test_the_tokenizer_is_built_from_the_metadata(family: str, pre: str, tmp_path: Path) -> None:
    """Texts with leading spaces are important for SentencePiece."""
    described = _described(tmp_path, family, pre)
    theirs = Tokenizer.from_file(str(tmp_path / family / "tokenizer.json"))
    ours = Tokenizer.from_file(str(described / "tokenizer.json"))
    chat = "<|user|>\nYou\n  a<|end|>\n<|assistant|>\n"
    defaults = "<|endoftext|> <unk> <s> <mask>"  # of transformers' classes; some models do not have them
    texts = (*script_texts(100, ["<|eot_id|>", "<s>", "[INST]"]), chat, defaults)
    for text in (*texts, " a", "  a", "▁a", "", " "):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == expected
        if pre:
            assert ours.encode(text).ids == theirs.encode(text).ids, "BOS"
        assert pre or ours.decode(expected) == theirs.decode(expected)
    assert read_templates(described) == {"default": "{{ messages }}"}
    assert tokenizer_files.loads_unchanged(described)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((described / name).read_text())["pad_token_id"] is None


def test_special_tokens_may_be_spelled_outside_the_byte_alphabet(tmp_path: Path) -> None:
    """As in distilled models of DeepSeek-R1."""
    FAMILIES["llama3"](tmp_path / "llama3")
    file = tmp_path / "llama3" / "tokenizer.json"
    text = file.read_text().replace("<|begin_of_text|>", "<｜begin▁of▁sentence｜>")
    file.write_text(text.replace("<|start_header_id|>", "<｜User｜>"))
    _check_ids(tmp_path, "llama3", "llama-bpe", "<｜User｜>You<｜begin▁of▁sentence｜>")


def test_a_word_of_llama3s_vocabulary_is_one_token_even_if_no_merge_makes_it(tmp_path: Path) -> None:
    FAMILIES["llama3"](tmp_path / "llama3")
    file = tmp_path / "llama3" / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"]["Ġxyzzy"] = len(data["model"]["vocab"]) + len(data["added_tokens"])
    file.write_text(json.dumps(data))
    _check_ids(tmp_path, "llama3", "llama-bpe", "a xyzzy")


@pytest.mark.parametrize("pre", ["smollm", "refact"])
def test_digits_are_tokens_of_their_own_as_in_granite_code(pre: str, tmp_path: Path) -> None:
    FAMILIES["gpt2"](tmp_path / "gpt2")
    file = tmp_path / "gpt2" / "tokenizer.json"
    data = json.loads(file.read_text())
    steps = [{"type": "Digits", "individual_digits": True}, data["pre_tokenizer"]]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    file.write_text(json.dumps(data))
    _check_ids(tmp_path, "gpt2", pre, "a 1234567890 b")


def _check_ids(folder: Path, family: str, pre: str, text: str) -> None:
    """Check the ids of a GGUF file's tokenizer against the family's in `folder`, and the number of tokens."""
    ours = Tokenizer.from_file(str(_described(folder, family, pre) / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(folder / family / "tokenizer.json"))
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.get_vocab_size() == theirs.get_vocab_size()


@pytest.mark.parametrize("turn", ["<|im_end|>", "<|eot_id|>"])
@pytest.mark.parametrize("text", ["<|endoftext|>", "</s>", "<eos>", "[EOS]"])
def test_generation_ends_with_a_text_even_if_the_metadata_name_a_turn(
    turn: str, text: str, tmp_path: Path
) -> None:
    fields = {"tokens": ["a", text, turn, "b"], "token_type": [1, 3, 3, 1], "eos_token_id": 2}
    metadata: Any = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    write_texts(tmp_path / "model.gguf", metadata, tmp_path, with_tokenizer=False)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [1, 2]


@pytest.mark.parametrize(("family", "pre"), [("llama3", "llama-bpe"), ("phi3", ""), ("gemma3", "")])
def test_generation_ends_with_a_turn(family: str, pre: str, tmp_path: Path) -> None:
    """The metadata have no end of a turn, as in many files."""
    described = _described(tmp_path, family, pre)
    ends = json.loads((described / "generation_config.json").read_text())["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(tmp_path / family / "tokenizer.json"))
    turns = ("<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
    names = (*turns, "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")
    known = {tokenizer.token_to_id(token) for token in names}
    assert set(ends) == {1, *known} - {None}, "1 is the end of texts"


def test_sentencepiece_without_a_space_prefix(tmp_path: Path) -> None:
    """`tokenizer.ggml.add_space_prefix` is false."""
    FAMILIES["llama2"](tmp_path / "llama2")
    file = tmp_path / "llama2" / "tokenizer.json"
    data = json.loads(file.read_text())
    data["normalizer"] = data["normalizer"]["normalizers"][1]
    file.write_text(json.dumps(data))
    ours = Tokenizer.from_file(str(_described(tmp_path, "llama2", "") / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(file))
    for text in ("a b", " a", "  a"):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.decode(ids) == text


@pytest.mark.parametrize(
    ("version", "type_", "reason"),
    [
        (1, Kind.F32, "version 1 of the GGUF format"),
        (3, 31, "the unsupported type 31;"),
        (3, Kind.Q8_1, "the unsupported type Q8_1;"),
        (3, Kind.I8, "the unsupported type I8;"),
    ],
)
def test_a_file_of_an_unknown_kind_is_not_called_incomplete(
    version: int, type_: int, reason: str, file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(file.read_bytes())
    reader = gguf.GGUFReader(copy, "r+")
    reader.fields["GGUF.version"].parts[0][0] = version
    reader.tensors[0].field.parts[4][0] = type_
    reader.data.flush()
    with pytest.raises(UnknownGguf, match=reason) as caught:
        describe(copy, tmp_path)
    assert "complete" not in str(caught.value)


def test_an_unknown_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownGguf,
        match=r"'gpt2' with pre-tokenizer 'unheard-of'.* put the model's tokenizer.json next to .*model.gguf",
    ):
        _described(tmp_path, "llama3", "unheard-of")


def _described(folder: Path, family: str, pre: str) -> Path:
    """Describe a GGUF file with the tokenizer of a family. The tokenizer is created in `folder` if missing."""
    tokenizer, checkpoint, described = (folder / name for name in (family, "checkpoint", "described"))
    if not tokenizer.exists():
        FAMILIES[family](tokenizer)
    architecture = {"phi3": "phi3", "gemma2": "gemma", "gemma3": "gemma3"}.get(family, "llama")
    save_model(checkpoint, {"gemma3": "gemma3_text"}.get(family, architecture), **SHAPE)
    described.mkdir()
    write_gguf(checkpoint, folder / "model.gguf", architecture, Kind.F32, tokenizer, pre)
    describe(folder / "model.gguf", described)
    return described
