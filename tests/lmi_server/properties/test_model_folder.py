"""The folder that is served: the only one in PATH, and in place of /opt/ml/model where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server import config
from lmi_server.properties import model_folder
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
