"""Configurations derived from others: changed values, and everything that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.derive import derive, rewrite
from lmi_server.properties import loader
from tests.container.measure.compare.made_up import write_properties

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


def test_deriving_changes_and_adds_values_and_keeps_the_rest(tmp_path: Path, copies: Path) -> None:
    lines = ("# batch_size", "engine=Python", " max_dynamic_batch_size : 4", "option.dtype=\\", "  fp16")
    source = write_properties(tmp_path / "source", *lines)
    one = derive("one", source, copies, {"batch_size": "32", "option.rolling_batch": "disable"})
    two = derive("two", source / "serving.properties", copies, {"option.dtype": "fp32"})
    # An alias of the key is the same option, so it is replaced.
    head, dtype = ["# batch_size", "engine=Python"], ["option.dtype=\\", "  fp16"]
    first, second = ((file.path / "serving.properties").read_text().splitlines() for file in (one, two))
    assert first == [*head, "batch_size=32", *dtype, "option.rolling_batch=disable"]
    assert second == [*head, " max_dynamic_batch_size : 4", "option.dtype=fp32"]
    assert one.path != two.path
    assert one.origin == f"{source} with batch_size=32, option.rolling_batch=disable"


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("", "config.json"),
        ("", "m.gguf"),
        ("option.model_id=./m.gguf", "m.gguf"),
        ("option.model_id=../model", "../model/config.json"),
    ],
)
def test_a_derived_configuration_has_the_same_model(
    tmp_path: Path, copies: Path, line: str, file: str
) -> None:
    source = write_properties(tmp_path / "source", "engine=MPI", line)
    (tmp_path / "model").mkdir()
    (source / file).write_text("{}")
    derived = derive("derived", source, copies, {"option.dtype": "fp32"}).path
    before, after = (loader.load(path, {}).config.source.local_path for path in (source, derived))
    assert after == before


def test_a_hub_model_id_is_kept(tmp_path: Path, copies: Path) -> None:
    source = write_properties(tmp_path / "source", "option.model_id=org/model")
    path = derive("derived", source, copies, {"option.dtype": "fp32"}).path
    assert loader.load(path, {}).config.source.model_id == "org/model"


CODE = {
    "handler": "from labels import NAMES\ndef handle(inputs): ...\n",
    "formatter": "from djl_python import output_formatter\n@output_formatter\ndef rewrite(output): ...\n",
}


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("model", ["in the folder", "in another folder"])
def test_a_copy_runs_the_users_code_with_the_files_next_to_it(
    tmp_path: Path, copies: Path, code: str, model: str
) -> None:
    line = "" if model == "in the folder" else "option.model_id=../other"
    source = write_properties(tmp_path / "source", "engine=Python", line)
    (tmp_path / "other").mkdir()
    for folder in (source, tmp_path / "other"):
        (folder / "config.json").write_text("{}")
    (source / "model.py").write_text(CODE[code])
    (source / "requirements.txt").write_text("numpy\n")
    (source / "labels.py").write_text("NAMES = ()\n")
    (source / "data").mkdir()
    (source / "data" / "words.txt").write_text("a b")
    (source / "src" / "deep").mkdir(parents=True)
    (source / "src" / "deep" / "more.py").write_text("")
    (source / "src" / "prompt.txt").write_text("hello")
    (source / "src" / "up").symlink_to(source)
    first = derive("derived", source, copies, {"batch_size": "4"}).path
    path = derive("second", first, copies, {"batch_size": "8"}).path
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
    assert (path / "src/deep/more.py").resolve().is_relative_to(path)
    assert (path / "src/prompt.txt").read_text() == "hello"


def test_code_that_is_not_the_servers_is_linked(tmp_path: Path, copies: Path) -> None:
    source = write_properties(tmp_path / "source", "engine=Python")
    for name in ("env/lib/x.py", "tool.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    path = derive("derived", source, copies, {"batch_size": "4"}).path
    assert {name for name in ("env", "tool.py") if (path / name).is_symlink()} == {"env", "tool.py"}


def test_a_hidden_folder_beside_a_handler_is_linked(tmp_path: Path, copies: Path) -> None:
    source = write_properties(tmp_path / "source", "engine=Python")
    (source / "model.py").write_text(CODE["handler"])
    (source / ".venv" / "lib").mkdir(parents=True)
    (source / ".venv" / "lib" / "x.py").write_text("")
    path = derive("derived", source, copies, {"batch_size": "4"}).path
    assert (path / ".venv").is_symlink()
    assert not (path / "model.py").is_symlink()


def test_a_changed_entry_point_is_copied(tmp_path: Path, copies: Path) -> None:
    source = write_properties(tmp_path / "source", "engine=Python")
    (source / "other.py").write_text(CODE["handler"])
    path = derive("derived", source, copies, {"option.entryPoint": "other.py"}).path
    handler = loader.load(path, {}).config.handler
    assert handler is not None
    assert Path(handler.file) == path / "other.py"


@pytest.mark.parametrize("entry", ["src/format.py", "src.format"])
def test_a_copy_runs_code_in_a_folder_of_its_own(tmp_path: Path, copies: Path, entry: str) -> None:
    source = write_properties(tmp_path / "source", "engine=MPI", f"option.entryPoint={entry}")
    (source / "config.json").write_text("{}")
    (source / "src").mkdir()
    (source / "src" / "format.py").write_text(CODE["formatter"])
    path = derive("derived", source, copies, {"option.dtype": "fp32"}).path
    formatter = loader.load(path, {}).config.formatter
    assert formatter is not None
    assert Path(formatter.file) == path / "src/format.py"


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
