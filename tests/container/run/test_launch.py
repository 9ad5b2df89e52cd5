"""Command lines and environments of the child processes."""

from __future__ import annotations

import ast
import errno
import io
import pwd
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from container.errors import BadVariable
from container.machine import Machine
from container.progress import LogLines
from container.run import launch
from container.run.launch import MpiRun, RuntimePaths
from container.run.processes import Child
from container.run.serve import _Run, config_of_copy, places_per_copy
from container.run.stop_signals import StopSignals
from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings
from engines.health import EngineState, StatusBoard
from lmi_server.admin_token import token_matches

PATHS = RuntimePaths(Path("/run/lmi-x"))
CONFIG = MpiEngineConfig(
    model=ModelSettings("/m", "m", "fp32", 128),
    parallel=ParallelConfig(tp_size=3, threads_per_rank=5),
    cache=CacheConfig(16, True, 1 << 20),
    scheduler=SchedulerConfig(SchedulerSettings(4, 64, 64, 10)),
)


@pytest.mark.parametrize(
    ("engine", "module"), [("MPI", "engines.mpi.worker"), ("Python", "engines.python.dispatcher")]
)
def test_an_engine_gets_its_files_and_its_address(engine: str, module: str) -> None:
    command = launch.engine_command(engine, PATHS)
    assert command[1:5] == ["-P", "-m", "engines.start", module]
    assert dict(zip(command[5::2], command[6::2], strict=True)) == {
        "--config": "/run/lmi-x/engine.json",
        "--status": "/run/lmi-x/status",
        "--address": "ipc:///run/lmi-x/engine.sock",
    }


@pytest.mark.parametrize(("major", "btl"), [(5, "self,sm"), (4, "self,vader")])
def test_mpirun_starts_unbound_ranks_that_share_memory(major: int, btl: str) -> None:
    command = launch.mpirun_command(MpiRun(Path("/v/bin/mpirun"), major), 3, False, ["python", "-m", "x"])
    assert command[0] == "/v/bin/mpirun"
    assert command[-3:] == ["python", "-m", "x"]
    assert command[command.index("-n") + 1] == "3"
    assert command[command.index("--bind-to") + 1] == "none"
    assert command[command.index("btl") + 1] == btl
    assert "--oversubscribe" in command
    assert "--allow-run-as-root" not in command
    assert "--allow-run-as-root" in launch.mpirun_command(MpiRun(Path("/m"), 5), 2, True, ["x"])


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({"HOME": "/h"}, {"HOME": "/h"}),
        ({"OMP_NUM_THREADS": "64"}, {"OMP_NUM_THREADS": "5"}),
        ({}, {"PRTE_MCA_prte_tmpdir_base": "/run/lmi-x"}),
        ({}, {"OMPI_MCA_btl_sm_backing_directory": "/run/lmi-x"}),
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, {"PYTORCH_ALLOC_CONF": "backend:native"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}),
        ({}, {"NCCL_SOCKET_IFNAME": "lo"}),
        ({}, {"NCCL_GRAPH_REGISTER": "0"}),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, {"NCCL_SOCKET_IFNAME": "eth1"}),
    ],
    ids=str,
)
def test_the_environment_of_ranks(base: dict[str, str], expected: dict[str, str]) -> None:
    assert expected.items() <= launch.engine_environment(base, CONFIG, PATHS).items()


def test_more_than_two_ranks_add_in_one_order() -> None:
    for ranks in (1, 2, 3):
        config = replace(CONFIG, parallel=replace(CONFIG.parallel, tp_size=ranks))
        found = launch.engine_environment({}, config, PATHS)
        assert (launch.SUM_ORDER.items() <= found.items()) == (ranks > 2)


def test_the_loopback_library_is_appended_to_ld_preload() -> None:
    assert launch.mpi_environment({}, Path("/c/l.so"))["LD_PRELOAD"] == "/c/l.so"
    assert launch.mpi_environment({"LD_PRELOAD": "/a.so"}, Path("/c/l.so"))["LD_PRELOAD"] == "/c/l.so /a.so"
    assert launch.mpi_environment({"A": "b"}, None) == {"A": "b"}


def test_gunicorn_gets_an_expression_that_creates_the_application() -> None:
    paths = RuntimePaths(Path("/run/it's"))
    command = launch.web_command(launch.web_app(paths), paths.folder, 7, 2, 500)
    assert command[command.index("--bind") + 1] == "fd://7"
    assert command[command.index("--workers") + 1] == "2"
    assert command[command.index("--worker-connections") + 1] == "500"
    assert command[command.index("--worker-tmp-dir") + 1] == "/run/it's"
    module, call = command[-1].split(":", 1)
    tree = ast.parse(call, mode="eval").body
    assert module == "lmi_server.wsgi"
    assert isinstance(tree, ast.Call)
    assert ast.literal_eval(tree.args[0]) == "/run/it's/web.json"


@pytest.mark.parametrize("name", ["GUNICORN_CMD_ARGS", "PROMETHEUS_MULTIPROC_DIR"])
def test_web_processes_do_not_inherit(name: str) -> None:
    assert name not in launch.web_environment({name: "--bind :1"}, PATHS, 1)


def test_metrics_of_several_web_workers_are_shared_in_files() -> None:
    assert launch.web_environment({}, PATHS, 2)["PROMETHEUS_MULTIPROC_DIR"] == "/run/lmi-x/metrics"


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (31, 1), (32, 2), (64, 4), (500, 4)])
def test_web_workers_grow_slowly_with_the_cores(cores: int, workers: int) -> None:
    assert launch.web_workers(cores) == workers


@pytest.mark.parametrize(
    ("files", "each", "connections"),
    [(65536, 1, 8192), (8192, 1, 7936), (1024, 1, 768), (256, 1, 128), (2, 1, 2), (8192, 2, 3968), (2, 2, 2)],
)
def test_web_connections_leave_room_for_other_open_files(files: int, each: int, connections: int) -> None:
    assert launch.web_connections(files, each) == connections


def test_web_processes_get_a_digest_and_no_process_gets_the_admin_token() -> None:
    environ = {"LMI_ADMIN_TOKEN": "s3cret", "HOME": "/h"}
    assert token_matches("s3cret", launch.admin_token_digest(environ))
    assert launch.without_admin_token(environ) == {"HOME": "/h"}
    assert launch.admin_token_digest({}) == launch.admin_token_digest({"LMI_ADMIN_TOKEN": ""}) == ""


@pytest.mark.parametrize(
    ("environ", "allowed"),
    [
        ({}, False),
        ({"LMI_ALLOW_REMOTE_CODE": ""}, False),
        ({"LMI_ALLOW_REMOTE_CODE": "1"}, False),
        ({"LMI_ALLOW_REMOTE_CODE": " True "}, True),
    ],
)
def test_remote_code_is_allowed_only_by_true(environ: dict[str, str], allowed: bool) -> None:
    assert launch.remote_code_allowed(environ) == allowed


@pytest.mark.parametrize("token", ["two words", "line\n", "caf\xe9", " "])
def test_a_token_that_no_client_can_send_is_rejected_and_not_quoted(token: str) -> None:
    with pytest.raises(BadVariable, match=r"LMI_ADMIN_TOKEN.*visible ASCII") as caught:
        launch.admin_token_digest({"LMI_ADMIN_TOKEN": token})
    assert token.strip() == "" or token.strip() not in str(caught.value)


def test_the_cache_folder_follows_the_environment() -> None:
    assert launch.cache_dir({"LMI_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert launch.cache_dir({"LMI_CACHE_DIR": "", "XDG_CACHE_HOME": "/b"}) == Path("/b/lmi")
    assert launch.cache_dir({}) == Path("~/.cache/lmi").expanduser()


def test_without_a_home_folder_the_cache_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(BadVariable, match=r"~/\.cache/lmi: there is no such home folder; set LMI_CACHE_DIR"):
        launch.cache_dir({})


def test_the_default_port_is_the_sagemaker_port_or_8080() -> None:
    assert launch.default_port({}) == 8080
    assert launch.default_port({"SAGEMAKER_BIND_TO_PORT": "9001"}) == 9001


@pytest.mark.parametrize("text", ["http", "-1", "0", "65536", "80 80"])
def test_an_invalid_port_is_rejected(text: str) -> None:
    with pytest.raises(BadVariable, match=r"SAGEMAKER_BIND_TO_PORT.*1 to 65535"):
        launch.default_port({"SAGEMAKER_BIND_TO_PORT": text})


@pytest.mark.parametrize(
    ("visible", "copy", "expected"),
    [
        (None, 0, None),
        ("7,6,5", 0, "7,6,5"),
        (None, 1, "0,1,2"),
        (None, 2, "3,4,5"),
        ("7, 6,5,4,3,2", 2, "4,3,2"),
        ("GPU-a,GPU-b,GPU-c", 1, "GPU-a,GPU-b,GPU-c"),
    ],
)
def test_each_of_several_copies_has_its_own_gpus(
    visible: str | None, copy: int, expected: str | None
) -> None:
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    config = replace(CONFIG, parallel=replace(CONFIG.parallel, device="cuda", copy=copy))
    assert launch.engine_environment(base, config, PATHS).get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(
    ("visible", "num_gpus", "degree", "expected"),
    [
        (None, 0, 1, ()),
        (None, 4, 2, ("0,1", "2,3")),
        (None, 5, 2, ("0,1", "2,3")),
        ("7, 6,5", 3, 1, ("7", "6", "5")),
        ("7,6", 2, 2, ("7,6",)),
    ],
)
def test_each_handler_worker_has_its_own_gpus(
    visible: str | None, num_gpus: int, degree: int, expected: tuple[str, ...]
) -> None:
    assert launch.worker_gpus(visible, num_gpus, degree) == expected


def test_files_of_the_previous_engine_are_removed_before_a_restart(tmp_path: Path) -> None:
    paths = RuntimePaths(tmp_path)
    paths.engine_config.write_text("{}")
    paths.new_board(2)
    old = StatusBoard.open(paths.status)  # as a web process does
    (tmp_path / "plans.sock").touch()
    (tmp_path / "prte" / "x").mkdir(parents=True)
    paths.clear()
    assert set(tmp_path.iterdir()) == {paths.engine_config, paths.status}
    assert not old.is_replaced
    paths.new_board(2).set_state(EngineState.READY)
    assert old.is_replaced
    assert old.read().state is EngineState.STARTING
    assert set(tmp_path.iterdir()) == {paths.engine_config, paths.status}


def test_the_board_of_an_engine_that_cannot_be_started_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise OSError(errno.EAGAIN, "no process left")

    monkeypatch.setattr(Child, "start", fail)
    (paths, _) = RuntimePaths(tmp_path).copies(2)
    paths.folder.mkdir()
    run = _Run(CONFIG, 2, False, paths, {}, Machine(1, 1), LogLines(io.StringIO()), StopSignals())
    with pytest.raises(OSError, match="no process left"):
        run._start_engine(1, paths, None)
    health = StatusBoard.open(paths.status).read()
    assert health.state is EngineState.FAILED
    assert "no process left" in health.reason


def test_each_copy_has_its_own_number_and_step_trace() -> None:
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, step_trace="/t/steps.jsonl"))
    of_copy = config_of_copy(config, 2)
    assert isinstance(of_copy, MpiEngineConfig)
    assert of_copy.parallel.copy == 2
    assert of_copy.scheduler.step_trace == "/t/steps-copy2.jsonl"
    without = config_of_copy(CONFIG, 1)
    assert isinstance(without, MpiEngineConfig)
    assert without.scheduler.step_trace == ""


@pytest.mark.parametrize(
    ("max_num_batched_tokens", "web_workers", "places"), [(256, 1, 32), (256, 4, 8), (256, 64, 1), (16, 4, 4)]
)
def test_web_workers_share_the_places_in_the_batch_of_a_copy(
    max_num_batched_tokens: int, web_workers: int, places: int
) -> None:
    settings = replace(
        CONFIG.scheduler.settings, max_num_seqs=32, max_num_batched_tokens=max_num_batched_tokens
    )
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, settings=settings))
    assert places_per_copy(config, web_workers) == places
