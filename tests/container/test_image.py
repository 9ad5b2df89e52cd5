"""The Docker image: the Dockerfile, the pinned requirements, and the entry script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import REPO_ROOT, child_environment

ENTRY = REPO_ROOT / "container" / "entrypoint.sh"


def instructions() -> list[tuple[str, str]]:
    """Return (keyword, arguments) of each instruction of the Dockerfile."""
    text = (REPO_ROOT / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def arguments_of(keyword: str) -> list[str]:
    return [rest for name, rest in instructions() if name == keyword]


def test_the_entry_point_is_in_exec_form_and_exists() -> None:
    (entry,) = arguments_of("ENTRYPOINT")
    (program,) = json.loads(entry)
    assert (REPO_ROOT / Path(program).relative_to("/opt/lmi")) == ENTRY
    assert os.access(ENTRY, os.X_OK)
    assert json.loads(arguments_of("CMD")[0]) == ["serve"]


def test_the_image_has_the_sagemaker_labels() -> None:
    labels = " ".join(arguments_of("LABEL"))
    assert "com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true" in labels
    assert "com.amazonaws.sagemaker.capabilities.multi-models=true" in labels
    assert arguments_of("EXPOSE") == ["8080"]


def test_every_copied_source_exists() -> None:
    copies = [rest for rest in arguments_of("COPY") if "--from=" not in rest]
    sources = [source for rest in copies for source in rest.split()[:-1]]
    assert {"container", "lmi_server", "engines", "kernels", "container/requirements"} <= set(sources)
    assert [source for source in sources if not (REPO_ROOT / source).exists()] == []


def test_the_build_argument_selects_the_base_image() -> None:
    assert "TORCH=cpu" in arguments_of("ARG")
    stages = [rest.rpartition(" AS ")[2] for rest in arguments_of("FROM")]
    assert {"base-cpu", "base-cuda"} <= set(stages)
    assert stages[-1] == "base-${TORCH}"
    assert any("requirements/${TORCH}.txt" in rest for rest in arguments_of("RUN"))


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a build stage. The last stage is named ""."""
    found: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for word, rest in instructions():
        if word == "FROM":
            current = rest.partition(" AS ")[2]
        found.setdefault(current, []).append((word, rest))
    return found[name]


def test_a_source_change_does_not_invalidate_the_dependencies_stage() -> None:
    assert [rest for word, rest in stage("dependencies") if word == "COPY"] == [
        "container/requirements requirements"
    ]


def test_the_last_stage_installs_nothing() -> None:
    last = stage("")[1:]
    assert [rest for word, rest in last if word == "RUN" and ("apt" in rest or "pip" in rest)] == []
    assert [rest for word, rest in last if word == "COPY" and "--from=" not in rest] == []


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_image_requirements_match_the_constraints_and_have_hashes(build: str) -> None:
    lines = (REPO_ROOT / "container/requirements" / f"{build}.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    pinned = {line.split(" ")[0].split("+")[0].replace("_", "-") for line in lines}
    constraints = {
        line.lower().replace("_", "-")
        for line in (REPO_ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert sorted(pinned - constraints) == []
    project = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]
    required = {name.lower().replace("_", "-") for name in project["dependencies"]} | {"setuptools"}
    required -= {"torch"} if build == "cpu" else set()
    assert sorted({name.split(";")[0] for name in required} - {line.split("==")[0] for line in pinned}) == []
    assert ("triton" in {line.split("==")[0] for line in pinned}) is (build == "cuda")


def test_the_cpu_build_has_the_torch_version_of_the_constraints() -> None:
    torch = (REPO_ROOT / "container/requirements" / "torch-cpu.txt").read_text().strip().removesuffix("+cpu")
    assert torch in (REPO_ROOT / "constraints.txt").read_text().splitlines()


def test_a_wheel_contains_every_module() -> None:
    setting = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    missing = []
    for package in ("container", "lmi_server", "engines"):
        data = {
            path for glob in setting["package-data"][package] for path in (REPO_ROOT / package).glob(glob)
        }
        for module in (REPO_ROOT / package).rglob("*.py"):
            folders = [module.parent, *module.parent.parents]
            inner = folders[: folders.index(REPO_ROOT)]
            if module not in data and not all((folder / "__init__.py").exists() for folder in inner):
                missing.append(str(module.relative_to(REPO_ROOT)))
    assert missing == []


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
    """A folder with a fake `lmi` that prints its process id and arguments."""
    program = tmp_path / "lmi"
    program.write_text('#!/bin/sh\nprintf "%s|" "$$" lmi "$@"\n')
    program.chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ((), "lmi|serve|"),
        (("serve",), "lmi|serve|"),
        (("serve", "/some where", "--port", "9000"), "lmi|serve|/some where|--port|9000|"),
    ],
)
def test_serve_is_the_default_command(fake_lmi: str, arguments: tuple[str, ...], output: str) -> None:
    assert run_entry(*arguments, path=fake_lmi).stdout.split("|", 1)[1] == output


def test_the_server_replaces_the_script_so_that_signals_reach_it(fake_lmi: str) -> None:
    with subprocess.Popen(
        [ENTRY], stdout=subprocess.PIPE, text=True, env={"PATH": f"{fake_lmi}:{os.defpath}"}
    ) as process:
        out, _ = process.communicate(timeout=600)
    assert int(out.split("|")[0]) == process.pid


def test_other_arguments_are_run_as_a_command(fake_lmi: str) -> None:
    result = run_entry("sh", "-c", "echo it is $0; exit 3", "me", path=fake_lmi)
    assert (result.returncode, result.stdout) == (3, "it is me\n")


def test_an_empty_model_folder_is_an_error_without_traceback(tmp_path: Path) -> None:
    lmi = tmp_path / "lmi"
    lmi.write_text(f'#!/bin/sh\nexec {sys.executable} -m container "$@"\n')
    lmi.chmod(0o755)
    empty = tmp_path / "model"
    empty.mkdir()
    variables = {"LMI_MODEL_DIR": str(empty), "PYTHONPATH": child_environment()["PYTHONPATH"]}
    result = run_entry("serve", path=str(tmp_path), **variables)
    assert result.returncode == 1
    assert str(empty) in result.stderr
    assert "Traceback" not in result.stderr
