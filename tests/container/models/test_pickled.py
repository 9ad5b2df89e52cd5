"""Folders of pickled weights. The error names a command that converts them, and the command works."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from container.models import pickled
from container.models.files import ModelNotAvailable, choice
from container.models.files.folder import weights_problem
from container.models.files.remote import RemoteFile, Snapshot

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4).half()}


def test_the_command_in_the_error_makes_the_folder_loadable(tmp_path: Path) -> None:
    folder = tmp_path / "it's a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    # Shared and transposed tensors are common in such files. safetensors rejects both.
    torch.save({**TENSORS, "tied": TENSORS["a"]}, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({"transposed": TENSORS["a"].T}, folder / "pytorch_model-00002-of-00002.bin")
    torch.save({"lr": 0.1}, folder / "training_args.bin")
    problem = weights_problem(folder)
    assert problem is not None
    assert "\n" not in problem
    assert "only pytorch_model-00001-of-00002.bin" in problem
    _, _, command = problem.partition("convert them once: ")
    subprocess.run(command, shell=True, check=True, timeout=600)  # noqa: S602 - as a user runs it
    assert weights_problem(folder) is None
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == {"a", "b", "tied", "transposed"}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert torch.equal(tensors["transposed"], TENSORS["a"].T)


@pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth", "-rf.bin", "a b;c.bin"])
def test_the_command_quotes_file_names_and_loads_no_code(name: str) -> None:
    files = tuple(RemoteFile(path, 10, "1") for path in ("config.json", "optimizer.pt", name))
    with pytest.raises(ModelNotAvailable) as caught:
        choice.choose(Snapshot("s3://bucket/model/", files))
    _, _, command = str(caught.value).partition("upload model.safetensors: ")
    _, *options, program, target, path = shlex.split(command)
    assert (options, target, path) == (["-P", "-c"], "model.safetensors", f"./{name}")
    assert program.count("torch.load") == program.count("weights_only=True") == 1


def test_other_formats_have_no_conversion_command() -> None:
    assert pickled.advice("/folder", ["model.gguf", "training_args.bin"]) == ""
