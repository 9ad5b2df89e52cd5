"""The tuned file: changed lines are commented, all others stay, and the loader reads it as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.derive import derive
from container.measure.tune.tuned_file import tuned_file
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


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    keys=st.sets(st.sampled_from(sorted(CHANGES)), min_size=1),
    end=st.sampled_from(("\n", "\r\n", "\r")),
    ends=st.booleans(),
)
def test_the_tuned_file_loads_as_the_configuration_that_was_run(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], keys: set[str], end: str, ends: bool
) -> None:
    folder = tmp_path_factory.mktemp("file")
    (folder / "made").mkdir()
    file, changes = folder / "serving.properties", {key: CHANGES[key] for key in sorted(keys)}
    text = "\n".join(["option.model_id=m", *lines]).replace("\n", end) + (end if ends else "")
    file.write_bytes(text.encode("latin-1"))
    run = derive("run", file, folder / "made", changes).path
    output = folder / "serving.properties.tuned"
    output.write_bytes(tuned_file(file, changes, ["lmi tune", "a\nb"], EFFECT, folder))
    tuned, meant = loader.load(output, {}).config, loader.load(run, {}).config
    assert (tuned.options, tuned.engine) == (meant.options, meant.engine)
    written = output.read_text("latin-1").splitlines()
    assert written[:2] == ["# lmi tune", "# a\\nb"]
    assert sum(EFFECT in line for line in written) == len(changes)
    for line in lines:
        kept = not line.startswith(("option.max_rolling", "option.block_size"))
        assert not kept or line in written


def test_each_changed_line_says_what_it_was(tmp_path: Path) -> None:
    file = tmp_path / "serving.properties"
    file.write_text("engine=Python\n# mine\nmax_dynamic_batch_size=4\nbatch_size=4\n")
    changes = {"batch_size": "16", "max_batch_delay": "20"}
    assert tuned_file(file, changes, [], EFFECT, tmp_path).decode().splitlines() == [
        "engine=Python",
        "# mine",
        f"# was 4; {EFFECT}",
        "batch_size=16",
        f"# was not set; {EFFECT}",
        "max_batch_delay=20",
    ]


def test_in_another_folder_the_model_stays_the_same(tmp_path: Path) -> None:
    source, model, other = (tmp_path / name for name in ("source", "model", "other"))
    for folder in (source, model, other):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    file = source / "serving.properties"
    file.write_text("option.model_id=../model\n")
    (other / "serving.properties").write_bytes(
        tuned_file(file, {"option.block_size": "8"}, [], EFFECT, other)
    )
    assert loader.load(other, {}).config.source.local_path == model
