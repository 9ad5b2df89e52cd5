"""`lmi prepare` of hub models: revisions, and the models of configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from tests.support.hub_server import HubServer
from tests.support.model_files import model

ID = "owner/tiny"


@pytest.fixture
def run(
    hub: HubServer, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """`lmi prepare` in this process, with a hub whose model has the branches main and v2."""
    monkeypatch.setenv("LMI_CACHE_DIR", str(cache))
    monkeypatch.chdir(tmp_path)
    hub.commit(ID, model(seed=1))
    hub.commit(ID, model(seed=2), branch="v2")
    return lambda *arguments: CliRunner().invoke(main, ["prepare", *arguments])


def seed_of(result: Result) -> int:
    """Return the seed of the prepared model."""
    assert result.exit_code == 0, result.stderr
    seed: int = json.loads(Path(result.stdout.strip(), "config.json").read_text())["seed"]
    return seed


@pytest.mark.parametrize("variable", ["HF_REVISION", "OPTION_REVISION"])
def test_it_takes_a_revision_from_an_option_or_the_environment(
    variable: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seed_of(run(ID)) == 1
    assert seed_of(run(ID, "--revision", "v2")) == 2
    monkeypatch.setenv(variable, "v2")
    assert seed_of(run(ID)) == 2
    assert seed_of(run(ID, "--revision", "main")) == 1
    assert run("--prune", "--revision", "v2").exit_code == 2
    assert "set option.revision (lmi prepare: --revision)" in run(ID, "--revision", "v9").stderr


@pytest.mark.parametrize("name", ["", "/serving.properties"])
def test_it_prepares_the_model_of_a_configuration(
    name: str, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_REVISION", "main")  # the file takes precedence, as when serving
    file = tmp_path / "folder" / "serving.properties"
    file.parent.mkdir()
    file.write_text(f"engine=MPI\noption.model_id={ID}\noption.revision=v2\n")
    path = f"{file.parent}{name}"
    assert seed_of(run(path)) == 2
    assert seed_of(run(path, "--verify")) == 2
    assert seed_of(run(path, "--revision", "main")) == 1
    pruned = run(path, "--prune")
    assert seed_of(pruned) == 2
    assert "freed" in pruned.stderr
    file.write_text("engine=MPI\noption.model_idd=x\n")
    broken = run(path)
    assert broken.exit_code == 1
    assert "did you mean option.model_id?" in broken.stderr


@pytest.mark.parametrize("place", ["folder", "file", "s3"])
def test_it_rejects_a_revision_of_a_model_that_has_none(place: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "serving.properties"
    if place == "file":
        file.write_text("engine=MPI\n")
    model = {"folder": str(tmp_path), "file": str(file), "s3": "s3://my-bucket/llama/"}[place]
    result = CliRunner().invoke(main, ["prepare", model, "--revision", "v2"])
    assert result.exit_code == 2
    where = model if place == "s3" else tmp_path
    assert f"--revision: only models of the Hub have revisions (got {where}); leave it out" in result.stderr
