"""Argument lists and environments of the child processes, and the files of one run.

`environment` and `server_environment` are the only places of this package that read the process environment. Only
`RuntimePaths.clear` and `RuntimePaths.new_board` change files.

Every Python is started with `-P`. Otherwise it would import modules from the current folder, which may be a model's.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from container.errors import BadVariable
from engines.config import EngineConfig
from engines.health import StatusBoard
from lmi_server.admin_token import token_digest

DEFAULT_PORT = 8080
ADMIN_TOKEN = "LMI_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
STEP_TRACE = "OPTION_STEP_TRACE"
_GUNICORN_CONF = Path(__file__).with_name("gunicorn_conf.py")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
BIND_TO_PORT = "SAGEMAKER_BIND_TO_PORT"
SEGMENT_BYTES = 4 << 20
"""Shared memory of Open MPI for each rank, a quarter of its default: 8 ranks fit into docker's 64 MiB."""
SUM_ORDER = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "3"}
"""Recursive doubling: all elements are added in the same order of ranks. With more than two ranks, the default order
depends on the size of the message and the element's place in it, and so on the batch."""
_CORES_PER_WEB_WORKER = 16
_MAX_WEB_WORKERS = 4
_MAX_CONNECTIONS = 8192
"""Maximum connections of one web worker. An idle connection takes about 50 kB."""
_OTHER_OPEN_FILES = 256
"""Maximum open files of a web worker besides its connections."""


def environment() -> Mapping[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


def server_environment() -> Mapping[str, str]:
    """Like `environment`, but also remove the admin token from the environment that child processes inherit."""
    environ = environment()
    os.environ.pop(ADMIN_TOKEN, None)
    return environ


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of prepared models: `LMI_CACHE_DIR`, else `XDG_CACHE_HOME/lmi`, else `~/.cache/lmi`.

    Raises BadVariable if there is no home folder.
    """
    if not environ.get("LMI_CACHE_DIR") and environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "lmi"
    text = environ.get("LMI_CACHE_DIR") or "~/.cache/lmi"
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise BadVariable(
            f"cache {text}: there is no such home folder; set LMI_CACHE_DIR to a folder"
        ) from error


def default_port(environ: Mapping[str, str]) -> int:
    """Return `SAGEMAKER_BIND_TO_PORT`, which defaults to 8080. Raises BadVariable if it is not a port."""
    text = environ.get(BIND_TO_PORT) or str(DEFAULT_PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise BadVariable(f"{BIND_TO_PORT}={text!r} is not a port; allowed: 1 to 65535")
    return int(text)


def remote_code_allowed(environ: Mapping[str, str]) -> bool:
    """Return whether the operator allows code that comes with a model (`LMI_ALLOW_REMOTE_CODE=true`)."""
    return environ.get("LMI_ALLOW_REMOTE_CODE", "").strip().lower() == "true"


def admin_token_digest(environ: Mapping[str, str]) -> str:
    """Return the digest of `LMI_ADMIN_TOKEN` for the web processes; empty without a token.

    Raises BadVariable if no client could send the token. The message does not contain the token.
    """
    token = environ.get(ADMIN_TOKEN, "")
    if not token:
        return ""
    if not re.fullmatch(r"[!-~]+", token):
        raise BadVariable(f"{ADMIN_TOKEN}: contains spaces or characters that are not visible ASCII")
    return token_digest(token)


def without_admin_token(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment for child processes, without the admin token."""
    return {name: value for name, value in environ.items() if name != ADMIN_TOKEN}


class RuntimePaths:
    """The files of one run, in a folder that only its owner can enter.

    The folder's name is short, because the address of a UNIX socket is limited to 107 bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine_config = folder / "engine.json"
        self.web_config = folder / "web.json"
        self.status = folder / "status"
        self.metrics = folder / "metrics"
        self.settings_lock = folder / "settings.lock"
        self.engine_address = f"ipc://{folder}/engine.sock"

    @property
    def formatter(self) -> RuntimePaths:
        """Files of the processes that run a user's formatters, in a subfolder."""
        return RuntimePaths(self.folder / "formatter")

    def copies(self, count: int) -> list[RuntimePaths]:
        """Return the files of each copy's engine: in this folder for one copy, in subfolders for several copies."""
        if count == 1:
            return [self]
        return [RuntimePaths(self.folder / f"copy{number}") for number in range(1, count + 1)]

    def clear(self) -> None:
        """Remove the sockets and the shared memory that a dead engine left behind."""
        for path in self.folder.iterdir():
            if path not in (self.engine_config, self.status):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def new_board(self, num_heartbeats: int) -> StatusBoard:
        """Create a status board that replaces one that clients may have open."""
        new = self.status.with_suffix(".new")
        board = StatusBoard.create(new, num_heartbeats)
        new.replace(self.status)
        return board


@dataclass(frozen=True, slots=True)
class MpiRun:
    """An mpirun executable of Open MPI."""

    path: Path
    major_version: int
    loopback: Path | None = None
    """Library that keeps mpirun's ports off the network; None if it cannot be used."""


_ENGINE_MODULES = {
    "MPI": "engines.mpi.worker",
    "Python": "engines.python.dispatcher",
    "Handler": "engines.python.handlers.dispatcher",
}


def engine_command(engine: str, paths: RuntimePaths) -> list[str]:
    """Return the command of one rank (engine=MPI), or of a dispatcher, which starts the processes that compute."""
    return [
        *(sys.executable, "-P", "-m", "engines.start", _ENGINE_MODULES[engine]),
        *("--config", str(paths.engine_config)),
        *("--status", str(paths.status)),
        *("--address", paths.engine_address),
    ]


def mpirun_command(mpirun: MpiRun, ranks: int, as_root: bool, command: list[str]) -> list[str]:
    """Return the command that runs `command` as `ranks` ranks on this machine.

    Ranks communicate through shared memory only. They are not bound to cores, because a rank's threads would then
    share one core. They may outnumber the cores, which tests need.
    """
    shared_memory = "sm" if mpirun.major_version >= 5 else "vader"
    root = ["--allow-run-as-root"] if as_root else []
    return [
        *(str(mpirun.path), *root, "--oversubscribe", "--bind-to", "none"),
        *("--mca", "btl", f"self,{shared_memory}", "-n", str(ranks), *command),
    ]


def on_ranks(
    mpirun: MpiRun, ranks: int, command: list[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs `command` as ranks, and its environment."""
    as_root = os.geteuid() == 0
    return mpirun_command(mpirun, ranks, as_root, command), mpi_environment(environ, mpirun.loopback)


def engine_environment(base: Mapping[str, str], config: EngineConfig, paths: RuntimePaths) -> dict[str, str]:
    """Return the environment of the engine. mpirun passes its own environment on to the ranks."""
    parallel = config.parallel
    gpus: dict[str, str] = {}
    if parallel.copy and parallel.device == "cuda":
        gpus = {VISIBLE_GPUS: _gpus_of_copy(base.get(VISIBLE_GPUS), parallel.copy, parallel.tp_size)}
    return {
        # Otherwise steps of many sizes would fragment torch's GPU memory.
        "PYTORCH_ALLOC_CONF": base.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        # All ranks are on this machine. NCCL would listen on another interface.
        "NCCL_SOCKET_IFNAME": "lo",
        # NCCL would register the buffers of captured collectives, which fails for expandable segments.
        "NCCL_GRAPH_REGISTER": "0",
        **base,
        **gpus,
        "OMP_NUM_THREADS": str(parallel.threads_per_rank),
        # How long a waiting thread spins before it sleeps. The default of libgomp wastes a whole time slice while the
        # web process has the core; this count covers the usual wait.
        "GOMP_SPINCOUNT": base.get("GOMP_SPINCOUNT", "10000"),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Files that a killed Open MPI leaves behind are removed with the run's folder.
        "OMPI_MCA_btl_sm_backing_directory": str(paths.folder),
        "OMPI_MCA_btl_vader_backing_directory": str(paths.folder),
        "OMPI_MCA_btl_sm_segment_size": str(SEGMENT_BYTES),
        "OMPI_MCA_btl_vader_segment_size": str(SEGMENT_BYTES),
        **(SUM_ORDER if parallel.tp_size > 2 else {}),
        "PRTE_MCA_prte_tmpdir_base": str(paths.folder),
        "OMPI_MCA_orte_tmpdir_base": str(paths.folder),
    }


def _gpus_of_copy(visible: str | None, copy: int, count: int) -> str:
    """Select a copy's `count` GPUs from those in CUDA_VISIBLE_DEVICES. copy: the copy's number, from 1."""
    gpus = [word.strip() for word in visible.split(",")] if visible is not None else None
    indices = range((copy - 1) * count, copy * count)
    return ",".join(gpus[index] if gpus is not None else str(index) for index in indices)


def worker_gpus(visible: str | None, num_gpus: int, degree: int) -> tuple[str, ...]:
    """Return the GPUs of each worker of a handler; their number is the tensor-parallel degree.

    visible, num_gpus: CUDA_VISIBLE_DEVICES and the number of GPUs of the server itself.
    """
    return tuple(_gpus_of_copy(visible, number, degree) for number in range(1, num_gpus // degree + 1))


def mpi_environment(base: Mapping[str, str], loopback: Path | None) -> dict[str, str]:
    """Return the environment of mpirun. The library `loopback` keeps mpirun's listening ports off the network."""
    if loopback is None:
        return dict(base)
    preloaded = " ".join(filter(None, [str(loopback), base.get("LD_PRELOAD", "")]))
    return {**base, "LD_PRELOAD": preloaded}


def web_workers(cores: int) -> int:
    """Return the number of gunicorn workers: few, as one serves 1000 streams and the engine needs the cores."""
    return max(1, min(_MAX_WEB_WORKERS, cores // _CORES_PER_WEB_WORKER))


def web_connections(open_files: int, files_each: int = 1) -> int:
    """Return the maximum connections of one web worker: at least 2, because a single idle one would keep others out.

    open_files: the limit per process. files_each: open files that one connection may need.
    """
    others = min(_OTHER_OPEN_FILES, open_files // 2)
    return max(2, min(_MAX_CONNECTIONS, (open_files - others) // files_each))


def base_url(host: str, port: int) -> str:
    """Return the URL of a server that listens on a numeric IPv4 or IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def web_app(paths: RuntimePaths) -> str:
    """Return gunicorn's name for the application of a single model."""
    return f"lmi_server.wsgi:make_app({str(paths.web_config)!r})"


def web_command(app: str, folder: Path, listener: int, workers: int, connections: int) -> list[str]:
    """Return the gunicorn command.

    folder: the run's, for the heartbeats of workers, because /tmp may be slow or not writable. listener: file
    descriptor of the listening socket. connections: limit per worker.
    """
    return [
        *(sys.executable, "-P", "-m", "lmi_server.http.gunicorn_main", "--config", f"file:{_GUNICORN_CONF}"),
        *("--bind", f"fd://{listener}", "--workers", str(workers)),
        *("--worker-connections", str(connections), "--worker-tmp-dir", str(folder)),
        app,
    ]


def web_environment(base: Mapping[str, str], paths: RuntimePaths, workers: int) -> dict[str, str]:
    """Return the environment of gunicorn, without GUNICORN_CMD_ARGS, which could override settings that are required.

    Several workers keep their metrics in files, so that each worker can report the metrics of all.
    """
    excluded = {"GUNICORN_CMD_ARGS", "PROMETHEUS_MULTIPROC_DIR"}
    env = {key: value for key, value in base.items() if key not in excluded}
    env |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    return env | {"PROMETHEUS_MULTIPROC_DIR": str(paths.metrics)} if workers > 1 else env
