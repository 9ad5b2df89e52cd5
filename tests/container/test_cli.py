"""The `lmi` command as a program."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from container import cli, serve_command
from tests.support.paths import REPO_ROOT, child_environment

EXAMPLE = REPO_ROOT / "properties_examples" / "smollm2-rolling-paged"


def lmi(*arguments: str, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run `lmi` with these arguments. `code` is executed first, in the same process."""
    program = f"{code}\nimport sys\nfrom container.cli import main\nmain(sys.argv[1:], prog_name='lmi')"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=child_environment(env),
    )


def test_no_command_imports_torch_in_its_own_process() -> None:
    code = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "boto3"): raise SystemExit(f"{name} is imported")
sys.meta_path.insert(0, Forbid())
from container.cli import main
for words in ("options", "serve --help", "bench --help", "deploy --help"):
    main(words.split(), standalone_mode=False)
"""
    result = lmi("kv-waste", "--requests", "9", code=code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage: ") == 3


def test_configuration_errors_name_file_line_and_option_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("engine=MPI\noption.paged_atention=true\n")
    result = lmi("serve", str(tmp_path), "--port", "0")
    assert result.returncode == 1
    assert "serving.properties:2" in result.stderr
    assert "option.paged_attention" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.model
def test_an_occupied_port_is_reported_before_the_model_is_loaded(tmp_path: Path, bundled_model: Path) -> None:
    (tmp_path / "serving.properties").write_text(f"engine=MPI\noption.model_id={bundled_model}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = lmi(
            "serve",
            str(tmp_path),
            "--host",
            "127.0.0.1",
            SAGEMAKER_BIND_TO_PORT=str(listener.getsockname()[1]),
        )
    assert result.returncode == 1
    assert "another process uses it" in result.stderr
    assert "--port" in result.stderr


def test_a_bug_is_not_reported_as_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> int:
        raise ValueError("list.remove(x): x not in list")

    monkeypatch.setattr(serve_command, "serve_until_end", broken)
    result = CliRunner().invoke(cli.main, ["serve", str(EXAMPLE), "--port", "0"])
    assert isinstance(result.exception, ValueError)


def test_child_processes_do_not_inherit_the_admin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def serve(options: object, environ: Mapping[str, str], view: object) -> int:
        child = subprocess.run(["env"], stdout=subprocess.PIPE, text=True, check=True)
        seen.extend([environ["LMI_ADMIN_TOKEN"], child.stdout])
        return 0

    monkeypatch.setattr(serve_command, "serve_until_end", serve)
    monkeypatch.setenv("LMI_ADMIN_TOKEN", "s3cret")
    assert CliRunner().invoke(cli.main, ["serve", str(EXAMPLE), "--port", "0"]).exit_code == 0
    token, child_environment = seen
    assert token == "s3cret"
    assert "s3cret" not in child_environment


def test_check_reads_the_model_folder_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(f"engine=MPI\noption.model_id={tmp_path}\n")
    result = CliRunner().invoke(cli.main, ["check"], env={"LMI_MODEL_DIR": str(tmp_path)})
    assert str(tmp_path) in result.output


def test_a_file_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> dict[str, Path]:
        raise PermissionError(13, "Permission denied", "/model/config.json")

    monkeypatch.setattr("container.explain.check_command.model_folders", refuse)
    result = CliRunner().invoke(cli.main, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert "/model/config.json: Permission denied to user" in result.output


def test_a_misspelt_command_gets_the_nearest_name() -> None:
    result = CliRunner().invoke(cli.main, ["serv"])
    assert result.exit_code == 2
    assert "No such command 'serv'. Did you mean 'serve'?" in result.output
    assert "Did you mean" not in CliRunner().invoke(cli.main, ["xyz"]).output


def test_the_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"LMI Server {version('lmi-server')}\n"
