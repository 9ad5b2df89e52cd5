"""The folder that is served: the only one in PATH, and in place of /opt/ml/model where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server import config
from lmi_server.properties import model_folder
from lmi_server.properties.loader import examine
from lmi_server.properties.model_folder import nested_folder
from tests.lmi_server.properties.loading import load_text


def test_the_only_folder_is_a_model_if_it_has_its_files(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert nested_folder(tmp_path) == tmp_path
    (inner / "model.gguf").touch()
    for hidden in (".cache", "lost+found"):
        (tmp_path / hidden).mkdir()
    assert nested_folder(tmp_path) == inner
    (tmp_path / "README").touch()
    assert nested_folder(tmp_path) == tmp_path
    assert nested_folder(tmp_path / "README") == tmp_path / "README"


@pytest.mark.parametrize("named", ["", "/weights/model.gguf"])
def test_the_mounted_model_is_the_served_folder_where_nothing_is_mounted(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    for module in (config, model_folder):
        monkeypatch.setattr(module, "MODEL_MOUNT", mount)
    served = tmp_path / "served"
    served.mkdir()
    loaded = load_text(served, f"option.model_id={mount}{named}\n")
    assert loaded.config.source.local_path == Path(f"{served}{named}")
    assert [note for note in loaded.notes if f"has no {mount}, so {served} is used in its place" in note]
    mount.mkdir()
    loaded = load_text(served, f"option.model_id={mount}{named}\n")
    assert loaded.config.source.local_path == Path(f"{mount}{named}")
    assert not [note for note in loaded.notes if "in its place" in note]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (
            ("chat", "small", "README"),
            "has folders with models (chat, small), but also README, which is not a model's folder; several models are"
            " served only from a folder with nothing else in it: move README away",
        ),
        (
            ("chat", "small", "a", "b"),
            "has folders with models (chat, small), but also a, b, which are not models' folders; several models are"
            " served only from a folder with nothing else in it: move a, b away",
        ),
        (
            ("chat", "README"),
            "has a model's folder, chat, but also README; pass chat itself, or move README away",
        ),
        (
            ("chat", "small", "-small"),
            "has folders with models (-small, chat, small), but -small cannot be the name of a model; allowed: 1 to 128"
            " letters, digits, '.', '_' and '-', the first a letter or a digit",
        ),
    ],
    ids=["a file", "two others", "one model", "a name"],
)
def test_a_folder_of_models_that_is_not_served_is_refused_with_the_reason(
    names: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
        if name.endswith(("chat", "small")):
            (tmp_path / name / "config.json").touch()
    [problem] = examine(tmp_path, {}).problems
    assert problem.source.file == str(tmp_path)
    assert reason in problem.reason
