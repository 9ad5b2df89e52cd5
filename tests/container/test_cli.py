"""The `lmi` command as a program."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from container import cli, serve_command
from tests.support.namespaces import NEW_PIDS, require
from tests.support.paths import REPO_ROOT, child_environment

EXAMPLE = REPO_ROOT / "properties_examples" / "smollm2-rolling-paged"


def lmi(
    *arguments: str, code: str = "", prefix: Sequence[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `lmi` with these arguments. `code` is executed first, in the same process. prefix: a program that runs it."""
    program = f"{code}\nimport sys\nfrom container.cli import main\nmain(sys.argv[1:], prog_name='lmi')"
    return subprocess.run(
        [*prefix, sys.executable, "-c", program, *arguments],
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

    def serve(options: object, environ: Mapping[str, str], *_: object) -> int:
        child = subprocess.run(["env"], stdout=subprocess.PIPE, text=True, check=True)
        seen.extend([environ["LMI_ADMIN_TOKEN"], child.stdout])
        return 0

    monkeypatch.setattr(serve_command, "serve_until_end", serve)
    monkeypatch.setenv("LMI_ADMIN_TOKEN", "s3cret")
    assert CliRunner().invoke(cli.main, ["serve", str(EXAMPLE), "--port", "0"]).exit_code == 0
    token, child_environment = seen
    assert token == "s3cret"
    assert "s3cret" not in child_environment


@pytest.mark.parametrize(
    ("several", "function"), [("false", "serve_until_end"), ("true", "serve_several")], ids=["one", "several"]
)
def test_a_stop_signal_before_anything_is_served_is_no_error(
    several: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_command, function, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", several)
    result = CliRunner().invoke(cli.main, ["serve", str(EXAMPLE), "--port", "0"])
    assert (result.exit_code, result.output) == (0, "stopped before the server was ready\n")


def test_check_reads_the_model_folder_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(f"engine=MPI\noption.model_id={tmp_path}\n")
    result = CliRunner().invoke(cli.main, ["check"], env={"LMI_MODEL_DIR": str(tmp_path)})
    assert str(tmp_path) in result.output


@pytest.mark.parametrize(
    "command",
    [
        ("serve", EXAMPLE, "--port", "0"),
        ("check", EXAMPLE),
        ("prepare", EXAMPLE),
        ("prepare", "--prune"),
        ("bench", "http://127.0.0.1:1"),
        ("compare", EXAMPLE, EXAMPLE),
        ("tune", EXAMPLE, "--goal", "max tokens/s", "--output", "/tmp/none"),
        ("simulate", EXAMPLE, "--instance", "ml.g5.xlarge"),
        ("profile", EXAMPLE),
    ],
    ids=lambda command: command[0],
)
def test_a_cache_in_a_home_that_does_not_exist_is_reported_in_one_sentence(
    command: tuple[object, ...],
) -> None:
    result = CliRunner().invoke(cli.main, [*map(str, command)], env={"LMI_CACHE_DIR": "~no-such-user/x"})
    assert result.exit_code == 1, result.exception
    assert result.output.splitlines()[-1] == (
        "Error: cache ~no-such-user/x: there is no such home folder; set LMI_CACHE_DIR to a folder"
    )


def test_sigterm_stops_process_1_of_a_container_while_it_still_imports_modules(tmp_path: Path) -> None:
    require(NEW_PIDS)
    code = """
import os, signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "container.serve_command": os.kill(1, signal.SIGTERM)
sys.meta_path.insert(0, Stop())
"""
    result = lmi("serve", str(tmp_path), code=code, prefix=NEW_PIDS)
    assert (result.returncode, result.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_closed_streams_become_dev_null(closed: tuple[int, ...], tmp_path: Path) -> None:
    code = f"""
import atexit, os
def report():
    with open({str(tmp_path / "report")!r}, "w") as file:
        for number in {closed}:
            print(os.readlink(f"/proc/self/fd/{{number}}"), os.get_inheritable(number), file=file)
atexit.register(report)
"""
    shell = ["sh", "-c", f'exec "$@" {" ".join(f"{number}>&-" for number in closed)}', "sh"]
    (tmp_path / "serving.properties").write_text("engine=NoSuchEngine\n")
    result = lmi("serve", str(tmp_path), code=code, prefix=shell)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert 2 in closed or "serving.properties:1" in result.stderr
    assert (tmp_path / "report").read_text() == "/dev/null True\n" * len(closed)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PermissionError(13, "Permission denied", "/m/config.json"),
            "/m/config.json: Permission denied to user",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/dev/shm/x"), "/dev/shm/x: Read-only file system"),
        (
            OSError(errno.ENOENT, "No usable temporary directory found"),
            "refused: No usable temporary directory",
        ),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "refused: Resource temporarily"),
    ],
    ids=["permission", "read-only", "no temporary folder", "no process"],
)
def test_an_error_of_the_system_is_reported_in_one_sentence(
    error: OSError, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> dict[str, Path]:
        raise error

    monkeypatch.setattr("container.explain.check_command.model_folders", refuse)
    result = CliRunner().invoke(cli.main, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert text in result.output


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [sys.executable, "-m", "container", "options"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment()
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(600) == 1


def test_a_misspelt_command_gets_the_nearest_name() -> None:
    result = CliRunner().invoke(cli.main, ["serv"])
    assert result.exit_code == 2
    assert "No such command 'serv'. Did you mean 'serve'?" in result.output
    assert "Did you mean" not in CliRunner().invoke(cli.main, ["xyz"]).output


def test_the_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"LMI Server {version('lmi-server')}\n"
