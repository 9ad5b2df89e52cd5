"""Configurations derived from others: changed values, and everything that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.derive import derive, rewrite
from lmi_server.properties import loader

EFFECT = "tokens/s +23.0 % [18.0, 28.0] over the file as it was"
LINES = (
    "# a comment\\",
    "",
    "option.max_rolling_batch_size = 8",
    "option.max_rolling_batch_size : 16",
    "option.block_size=\\\n   16",
    "option.dtype fp32",
    "! caf\xe9",
    "option.enable_prefix_caching=\\u0074rue",
)
CHANGES = {
    "option.max_rolling_batch_size": "64",
    "option.block_size": "32",
    "option.max_rolling_batch_prefill_tokens": "512",
}


def read_lines(path: Path) -> list[str]:
    return (path / "serving.properties").read_text().splitlines()


def test_deriving_changes_and_adds_values_and_keeps_the_rest(tmp_path: Path) -> None:
    source, copies = tmp_path / "source", tmp_path / "copies"
    source.mkdir()
    copies.mkdir()
    (source / "serving.properties").write_text(
        "# batch_size\nengine=Python\n max_dynamic_batch_size : 4\noption.dtype=\\\n  fp16\n"
    )
    one = derive("one", source, copies, {"batch_size": "32", "option.rolling_batch": "disable"})
    two = derive("two", source / "serving.properties", copies, {"option.dtype": "fp32"})
    # An alias of the key is the same option, so it is replaced.
    head, dtype = ["# batch_size", "engine=Python"], ["option.dtype=\\", "  fp16"]
    assert read_lines(one.path) == [*head, "batch_size=32", *dtype, "option.rolling_batch=disable"]
    assert read_lines(two.path) == [*head, " max_dynamic_batch_size : 4", "option.dtype=fp32"]
    assert one.path != two.path
    assert one.origin == f"{source} with batch_size=32, option.rolling_batch=disable"


@pytest.mark.parametrize("name", ["config.json", "m.gguf"])
@pytest.mark.parametrize("line", ["option.model_id=../model", ""], ids=["relative", "in the folder"])
def test_a_derived_configuration_has_the_same_model(tmp_path: Path, line: str, name: str) -> None:
    source, model, copies = tmp_path / "source", tmp_path / "model", tmp_path / "copies"
    for folder in (source, model, copies):
        folder.mkdir()
    ((model if line else source) / name).write_text("{}")
    (source / "serving.properties").write_text(f"engine=MPI\n{line}\n")
    before = loader.load(source, {}).config.source.local_path
    derived_path = derive("derived", source, copies, {"option.dtype": "fp32"}).path
    assert loader.load(derived_path, {}).config.source.local_path == before


def test_a_relative_gguf_path_refers_to_the_same_file(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    (tmp_path / "m.gguf").write_bytes(b"")
    (tmp_path / "serving.properties").write_text("option.model_id=./m.gguf\n")
    path = derive("derived", tmp_path, copies, {"option.dtype": "fp32"}).path
    assert loader.load(path, {}).config.source.local_path == tmp_path / "m.gguf"


def test_a_hub_model_id_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.properties").write_text("option.model_id=org/model\n")
    (tmp_path / "copies").mkdir()
    path = derive("derived", tmp_path / "x.properties", tmp_path / "copies", {"option.dtype": "fp32"}).path
    assert loader.load(path, {}).config.source.model_id == "org/model"


CODE = {
    "handler": "from labels import NAMES\ndef handle(inputs): ...\n",
    "formatter": "from djl_python import output_formatter\n@output_formatter\ndef rewrite(output): ...\n",
}


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("model", ["in the folder", "in another folder"])
def test_a_copy_runs_the_users_code_with_the_files_next_to_it(tmp_path: Path, code: str, model: str) -> None:
    source, other, copies = tmp_path / "source", tmp_path / "other", tmp_path / "copies"
    for folder in (source, other, copies):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    line = "" if model == "in the folder" else "option.model_id=../other\n"
    (source / "serving.properties").write_text(f"engine=Python\n{line}")
    (source / "model.py").write_text(CODE[code])
    (source / "requirements.txt").write_text("numpy\n")
    (source / "labels.py").write_text("NAMES = ()\n")
    (source / "data").mkdir()
    (source / "data" / "words.txt").write_text("a b")
    path = derive(
        "second", derive("derived", source, copies, {"batch_size": "4"}).path, copies, {"batch_size": "8"}
    ).path
    before, after = loader.load(source, {}).config, loader.load(path, {}).config
    assert after.formatter_roles == before.formatter_roles
    for config in (before, after):
        user = config.handler or config.formatter
        assert user is not None
        assert Path(user.file).read_text() == CODE[code]
        assert Path(user.requirements).read_text() == "numpy\n"
        assert (Path(config.source.model_dir) / "data" / "words.txt").read_text() == "a b"
    assert after.source.local_path == before.source.local_path
    assert after.options.batch_size == 8
    assert (path / "labels.py").is_file()


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    keys=st.sets(st.sampled_from(sorted(CHANGES)), min_size=1),
    newline=st.sampled_from(("\n", "\r\n", "\r")),
    ends_with_newline=st.booleans(),
)
def test_a_rewritten_file_loads_as_if_the_changes_came_last(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    keys: set[str],
    newline: str,
    ends_with_newline: bool,
) -> None:
    folder = tmp_path_factory.mktemp("file")
    file, changes = folder / "serving.properties", {key: CHANGES[key] for key in sorted(keys)}
    text = "\n".join(["option.model_id=m", *lines]).replace("\n", newline) + (
        newline if ends_with_newline else ""
    )
    file.write_bytes(text.encode("latin-1"))
    output = folder / "serving.properties.tuned"
    output.write_bytes(rewrite(file, changes, folder, ["lmi tune", "a\nb"], EFFECT))
    file.write_bytes(
        "\n".join([text, *(f"{key}={value}" for key, value in changes.items())]).encode("latin-1")
    )
    tuned, expected = loader.load(output, {}).config, loader.load(file, {}).config
    assert (tuned.options, tuned.engine) == (expected.options, expected.engine)
    output_lines = output.read_text("latin-1").splitlines()
    assert output_lines[:2] == ["# lmi tune", "# a\\nb"]
    assert sum(EFFECT in line for line in output_lines) == len(changes)
    for line in lines:
        kept = line and not line.startswith(("option.max_rolling", "option.block_size"))
        assert not kept or line in output_lines


def test_each_changed_line_has_a_comment_with_its_old_value(tmp_path: Path) -> None:
    file = tmp_path / "serving.properties"
    file.write_text("engine=Python\n# mine\nmax_dynamic_batch_size=4\nbatch_size=4\n")
    changes = {"batch_size": "16", "max_batch_delay": "20"}
    assert rewrite(file, changes, tmp_path, effect=EFFECT).decode().splitlines() == [
        "engine=Python",
        "# mine",
        f"# was 4; {EFFECT}",
        "batch_size=16",
        f"# was not set; {EFFECT}",
        "max_batch_delay=20",
    ]


def test_a_file_rewritten_for_another_folder_refers_to_the_same_model(tmp_path: Path) -> None:
    source, model, other = (tmp_path / name for name in ("source", "model", "other"))
    for folder in (source, model, other):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    file = source / "serving.properties"
    file.write_text("option.model_id=../model\n")
    (other / "serving.properties").write_bytes(
        rewrite(file, {"option.block_size": "8"}, other, effect=EFFECT)
    )
    assert loader.load(other, {}).config.source.local_path == model
