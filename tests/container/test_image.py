"""The image: what the Dockerfile says, and the entry script as a program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "container" / "entrypoint.sh"


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_the_entry_point_is_in_exec_form_and_exists() -> None:
    (entry,) = of("ENTRYPOINT")
    (program,) = json.loads(entry)
    assert (ROOT / Path(program).relative_to("/opt/lmi")) == ENTRY
    assert os.access(ENTRY, os.X_OK)
    assert json.loads(of("CMD")[0]) == ["serve"]


def test_the_labels_of_the_contract_are_there_and_none_that_is_not_kept() -> None:
    labels = " ".join(of("LABEL"))
    assert "com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true" in labels
    assert "multi-models" not in labels
    assert of("EXPOSE") == ["8080"]


def test_every_copied_source_exists() -> None:
    sources = [source for rest in of("COPY") for source in rest.split()[:-1]]
    assert {"container", "lmi_server", "engines", "kernels"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("torch", ["cpu", "cuda"])
def test_the_build_argument_chooses_the_base(torch: str) -> None:
    assert "TORCH=cpu" in of("ARG")
    assert any(rest.endswith(f" AS base-{torch}") for rest in of("FROM"))
    assert of("FROM")[-1] == "base-${TORCH}"
    assert any("TORCH=${TORCH}" in rest for rest in of("RUN"))


def run_entry(*arguments: str, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    shell_path = os.pathsep.join([path, *os.defpath.split(os.pathsep)])
    return subprocess.run(
        [ENTRY, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd="/",
        env={"PATH": shell_path, **env},
    )


@pytest.fixture
def fake_lmi(tmp_path: Path) -> str:
    """A folder with an `lmi` that prints its arguments."""
    program = tmp_path / "lmi"
    program.write_text('#!/bin/sh\nprintf "%s|" "$$" lmi "$@"\n')
    program.chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        ((), "lmi|serve|/opt/ml/model|"),
        (("serve",), "lmi|serve|/opt/ml/model|"),
        (("serve", "--port", "9000"), "lmi|serve|/opt/ml/model|--port|9000|"),
    ],
)
def test_serve_serves_the_model_folder(fake_lmi: str, arguments: tuple[str, ...], called: str) -> None:
    assert run_entry(*arguments, path=fake_lmi).stdout.split("|", 1)[1] == called


def test_the_model_folder_can_be_given_by_a_variable(fake_lmi: str) -> None:
    out = run_entry("serve", path=fake_lmi, LMI_MODEL_DIR="/some where").stdout
    assert out.split("|", 1)[1] == "lmi|serve|/some where|"


def test_the_server_takes_the_script_s_place_so_that_signals_reach_it(fake_lmi: str) -> None:
    with subprocess.Popen(
        [ENTRY], stdout=subprocess.PIPE, text=True, env={"PATH": f"{fake_lmi}:{os.defpath}"}
    ) as process:
        out, _ = process.communicate(timeout=600)
    assert int(out.split("|")[0]) == process.pid


def test_other_words_are_run_as_a_command(fake_lmi: str) -> None:
    done = run_entry("sh", "-c", "echo it is $0; exit 3", "me", path=fake_lmi)
    assert (done.returncode, done.stdout) == (3, "it is me\n")


def test_the_real_command_refuses_an_empty_model_folder_in_words(tmp_path: Path) -> None:
    lmi = tmp_path / "lmi"
    lmi.write_text(f'#!/bin/sh\nexec {sys.executable} -m container "$@"\n')
    lmi.chmod(0o755)
    empty = tmp_path / "model"
    empty.mkdir()
    done = run_entry(
        "serve",
        path=str(tmp_path),
        LMI_MODEL_DIR=str(empty),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    )
    assert done.returncode == 1
    assert str(empty) in done.stderr
    assert "Traceback" not in done.stderr
