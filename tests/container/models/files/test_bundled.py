"""Preparation of the real bundled model."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.models import files as model_files
from container.models.files import ModelNotAvailable, bundled
from container.progress import LogLines
from container.run.launch import cache_dir, environment
from lmi_server.config import ModelSource
from tests.support import processes
from tests.support.model_files import start_prepare
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

_HANGS = f"""
import time
from container import progress
from container.cli import main
progress.LogLines.update = lambda *arguments: time.sleep(600)
main(["prepare", {bundled.BUNDLED_MODEL!r}], prog_name="lmi")
"""


@pytest.fixture(scope="module")
def prepared() -> Path:
    """The folder in the default cache, so that the conversion runs once for all tests."""
    return bundled.prepare_bundled(cache_dir(environment()), LogLines(io.StringIO()))


@pytest.mark.model
@pytest.mark.long
def test_a_killed_preparation_is_never_served_and_concurrent_ones_convert_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    models = cache / "models"
    environment = child_environment({"LMI_CACHE_DIR": str(cache)})
    killed = subprocess.Popen([sys.executable, "-c", _HANGS], stderr=subprocess.DEVNULL, env=environment)
    wait_until(lambda: list(models.glob(".*part-*/model.safetensors")))
    converting = processes.descendants(killed.pid)
    killed.kill()
    killed.wait()
    assert processes.wait_exited(converting, 200) == []
    target = bundled.bundled_folder(cache)
    assert not target.exists()
    assert list(models.glob(".*part-*"))

    running = [start_prepare(bundled.BUNDLED_MODEL, cache, "") for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert [out.splitlines()[-1] for out, _ in outputs] == [str(target)] * 2
    assert sum("100 %" in err for _, err in outputs) == 1
    assert all("Q4_1" in err for _, err in outputs)
    assert [path.name for path in models.iterdir() if "part" in path.name] == []
    assert (target / "model.safetensors").stat().st_size == 269060552


@pytest.mark.model
def test_the_folder_is_world_readable_and_has_all_files(prepared: Path) -> None:
    names = {path.name for path in prepared.iterdir()}
    configs = {"config.json", "generation_config.json", "tokenizer_config.json"}
    assert names == configs | {"tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in prepared.iterdir()} == {0o644}


@pytest.mark.model
def test_the_configuration_describes_the_model(prepared: Path) -> None:
    config = json.loads((prepared / "config.json").read_text())
    expected = {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-05,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert [key for key in config if key.startswith("_")] == []


@pytest.mark.model
def test_the_tokenizer_splits_digits_as_in_training(prepared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>a\n\n12")
    assert encoded.tokens == ["<|im_start|>", "a", "ĊĊ", "1", "2"]
    text = "  Größe: 10 €\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.model
@pytest.mark.long
def test_weights_equal_those_that_transformers_loads(prepared: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    file = bundled.bundled_file()
    # With a configuration, transformers reads the file once instead of twice.
    theirs = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, config=AutoConfig.from_pretrained(prepared), dtype=torch.float32
    )
    ours = load_file(prepared / "model.safetensors")
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert set(ours) == set(expected)
    assert [name for name in ours if not torch.equal(ours[name], expected[name].to(torch.bfloat16))] == []


def test_the_model_is_located_only_when_it_is_complete(tmp_path: Path) -> None:
    source = ModelSource(bundled.BUNDLED_MODEL)
    target = bundled.bundled_folder(tmp_path)
    assert model_files.locate(source, tmp_path) is None
    (target.parent / f".{target.name}.part-x").mkdir(parents=True)
    assert model_files.locate(source, tmp_path) is None
    target.mkdir()
    assert model_files.locate(source, tmp_path) == target


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelNotAvailable, match="LMI_CACHE_DIR"):
        bundled.prepare_bundled(tmp_path, LogLines(io.StringIO()))


def test_preparing_needs_no_other_folder_than_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "damaged.gguf").touch()
    monkeypatch.setattr(bundled, "bundled_file", lambda: tmp_path / "damaged.gguf")
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(ModelNotAvailable, match=f"preparing {bundled.BUNDLED_MODEL} failed"):
        bundled.prepare_bundled(tmp_path / "cache", LogLines(io.StringIO()))
