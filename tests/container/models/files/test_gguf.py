"""Local GGUF files as models: their configurations, and unsupported files."""

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

from container.explain.check import check
from container.explain.resolve import CannotServe, resolve
from container.explain.target import this_machine
from container.machine import Machine
from container.models import files as model_files
from container.models import tokenizer_files
from container.models.files import ModelNotAvailable
from container.models.gguf_config import Metadata, UnknownGguf, read_config
from container.models.gguf_describe import describe
from container.progress import LogLines
from engines.config import MpiEngineConfig
from engines.models.gguf_index import read_index
from lmi_server.config import EngineOptions, LmiConfig, ModelSource
from tests.support.gguf_models import SHAPE, save_gguf
from tests.support.paths import child_environment

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
    before = check(properties, {}, this_machine(MACHINE))
    assert before.verdict.startswith("can serve here: unknown: the model is not prepared yet; `lmi prepare`")
    assert before.model.endswith("a GGUF file; `lmi serve` or `lmi prepare` reads its metadata once")
    _obtain(ModelSource(model_id=str(file)), tmp_path / "cache")
    assert ": ready in " in check(properties, {}, this_machine(MACHINE)).model


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


def test_a_message_lists_only_some_of_many_missing_files(tmp_path: Path) -> None:
    file = tmp_path / "m-00001-of-99999.gguf"
    file.touch()
    words = r"missing m-00002-of-99999\.gguf, m-00003-of-99999\.gguf, m-00004-of-99999\.gguf and 99995 more$"
    with pytest.raises(ModelNotAvailable, match=words):
        _obtain(ModelSource(model_id=str(file)), tmp_path)


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


def test_no_control_characters_of_a_file_reach_the_terminal(tmp_path: Path) -> None:
    file = _write(tmp_path, {"general.architecture": "a\x1b[2Jb"})
    with pytest.raises(
        ModelNotAvailable, match=r"cannot be served: .* \(got a\\x1b\[2Jb\); allowed: gemma, "
    ):
        _obtain(ModelSource(model_id=str(file)), tmp_path / "cache")


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
