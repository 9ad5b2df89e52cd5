"""The `lmi` command as a user starts it, with the example that `make serve` uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import BUNDLED_MODEL, REPO_ROOT, child_environment

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def lmi(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "container", *arguments],
        capture_output=True,
        text=True,
        cwd=REPO_ROOT,
        env=child_environment(),
        check=False,
    )


def test_prepare_prints_the_folder_last() -> None:
    done = lmi("prepare", BUNDLED_MODEL)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


def test_check_says_that_the_bundled_example_can_be_served() -> None:
    done = lmi("check", "properties_examples/smollm2-rolling-paged")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "can serve here: yes" in done.stdout


def test_serve_refuses_a_misspelt_key_with_line_and_suggestion(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("engine=MPI\noption.tensor_paralel_degree=1\n")
    done = lmi("serve", str(tmp_path), "--port", "0")
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "option.tensor_paralel_degree" in told
    assert "option.tensor_parallel_degree" in told
    assert "2" in told
