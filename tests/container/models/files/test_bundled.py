"""Preparation of the real bundled model."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.models.errors import ModelNotAvailable
from container.models.files import bundled
from container.progress import LogLines
from container.run.launch import cache_dir, environment
from tests.support import processes
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]


_HANGS = f"""
import time
from container import progress
from container.cli import main
progress.LogLines.update = lambda *arguments: time.sleep(600)
main(["prepare", {bundled.BUNDLED_MODEL!r}], prog_name="lmi")
"""


def start(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `lmi prepare`, or Python with `arguments` if given."""
    env = {**os.environ, "LMI_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    return subprocess.Popen(
        [sys.executable, *(arguments or ("-m", "container", "prepare", bundled.BUNDLED_MODEL))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


@pytest.fixture(scope="module")
def prepared() -> Path:
    """The folder in the default cache, so that the conversion runs once for all tests."""
    return bundled.prepare_bundled(cache_dir(environment()), LogLines(io.StringIO()))


@pytest.mark.model
@pytest.mark.long
def test_a_killed_preparation_is_never_served_and_concurrent_ones_convert_once(tmp_path: Path) -> None:
    killed = start(tmp_path, "-c", _HANGS)
    models = tmp_path / "models"
    wait_until(lambda: list(models.glob(".*part-*/model.safetensors")))
    converting = processes.descendants(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    processes.kill(converting)
    assert processes.wait_exited(converting, 200) == []
    target = bundled.bundled_folder(tmp_path)
    assert not target.exists()
    assert list(models.glob(".*part-*"))

    running = [start(tmp_path), start(tmp_path)]
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
    needed = {
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert names == needed | {"model.safetensors"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in prepared.iterdir()} == {0o644}


@pytest.mark.model
def test_the_configuration_describes_the_model(prepared: Path) -> None:
    config = json.loads((prepared / "config.json").read_text())
    shape = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
    )
    assert [config[key] for key in shape] == [30, 576, 9, 3, 1536]
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (49152, True)
    assert config["rms_norm_eps"] == 1e-05
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


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelNotAvailable, match="LMI_CACHE_DIR"):
        bundled.prepare_bundled(tmp_path, LogLines(io.StringIO()))
