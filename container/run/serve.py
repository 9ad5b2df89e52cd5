"""`lmi serve`, from start to shutdown.

properties -> listening socket -> model files -> decisions for this machine -> engine -> gunicorn -> ready -> shutdown.
Until gunicorn starts, `EarlyAnswers` answers requests.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from container.errors import UserError
from container.explain.resolve import CannotServe, obstacles, resolve
from container.machine import Machine, detect
from container.models import files as model_files
from container.models import tokenizer_files
from container.progress import ProgressView
from container.run import announce, launch, mpi, packages
from container.run.control import EngineControl
from container.run.early_answers import EarlyAnswers
from container.run.engine_copy import EngineCopy
from container.run.launch import RuntimePaths
from container.run.processes import Child
from container.run.runtime_folder import remove_leftovers, runtime_folder
from container.run.stop_signals import StopSignals
from container.run.supervise import Helper, Supervisor
from engines.config import EngineConfig, HandlerEngineConfig, MpiEngineConfig
from engines.health import EngineState, StatusBoard
from lmi_server.config import LmiConfig, WebConfig
from lmi_server.properties import loader

_WEB_NICE = 5
"""Niceness of the web processes: the engine's steps have priority, and a web process needs little CPU time."""
_OPEN_FILES = 65536
_FEW_OPEN_FILES = 1024
_STATS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the command line."""

    path: Path
    host: str
    port: int
    """TCP port; 0 selects any free port."""
    lenient: bool = False
    allow_remote_code: bool = False
    """Whether code that comes with a model may run if the configuration requires it."""


class CannotListen(UserError):
    """The server cannot listen on the address."""


def serve(options: ServeOptions, environ: Mapping[str, str], view: ProgressView, signals: StopSignals) -> int:
    """Serve until a stop signal. Returns the exit code.

    Raises: PropertiesError, CannotServe, ModelNotAvailable, NoMpiRun, CannotListen, BadVariable; StopRequested before
    processes are started.
    """
    started = time.monotonic()
    admin_token_digest = launch.admin_token_digest(environ)
    environ = launch.without_admin_token(environ)
    loaded = loader.load(options.path, environ, options.lenient)
    for warning in loaded.warnings:
        view.say(f"warning: {warning}")
    for note in loaded.notes:
        view.say(f"note: {note}")
    remove_leftovers()  # before `detect` measures the free shared memory
    machine = detect(environ)
    if reasons := obstacles(loaded.config, machine):
        raise CannotServe("; ".join(reasons))
    with listen(options.host, options.port) as listener:
        address = launch.base_url(*listener.getsockname()[:2])
        view.say(f"listening on {address}; /ping returns 503 until the server is ready")
        with EarlyAnswers(listener) as answers:
            prepared = _prepare(options, loaded.config, environ, machine, view, answers)
        before = {"configuration and model files": time.monotonic() - started}
        model_path = prepared.model_path
        with (
            nullcontext() if model_path is None else model_files.in_use(model_path),
            runtime_folder() as folder,
        ):
            paths = RuntimePaths(folder)
            _write_configs(paths, loaded.config, prepared, machine, admin_token_digest)
            has_formatter = prepared.formatter is not None
            run = _Run(
                prepared.engine, prepared.copies, has_formatter, paths, environ, machine, view, signals
            )
            return run.until_end(listener, loaded.config.options.model_loading_timeout, started, before)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the processes of a server need."""

    engine: EngineConfig
    """Configuration of each copy's engine."""
    copies: int
    formatter: HandlerEngineConfig | None
    """Configuration of the processes that run a user's formatters."""
    model_path: Path | None
    """Folder with the model's files; None if only the user's handler knows it."""
    tokenizer_path: Path | None
    """Folder with the tokenizer; None with a handler."""


def _prepare(
    options: ServeOptions,
    config: LmiConfig,
    environ: Mapping[str, str],
    machine: Machine,
    view: ProgressView,
    answers: EarlyAnswers,
) -> _Prepared:
    """Prepare the model's files and a user's packages, and resolve open options.

    Raises: CannotServe, ModelNotAvailable, BadVariable.
    """
    model_path = tokenizer_path = None
    if _needs_model(config):
        is_fetched = model_files.is_fetched(config.source)
        answers.reason = f"the model is being {'downloaded' if is_fetched else 'prepared'}"
        model_path = model_files.obtain(config.source, view)
    resolved = resolve(config, model_path, machine, options.allow_remote_code)
    for note in resolved.notes:
        view.say(f"note: {note}")
    engine, formatter = resolved.config, resolved.formatter
    user = config.handler or config.formatter
    if user is not None:
        answers.reason = "the packages of requirements.txt are being installed"
        python = packages.interpreter(user, launch.cache_dir(environ), environ, view)
        if isinstance(engine, HandlerEngineConfig):
            visible = environ.get(launch.VISIBLE_GPUS)
            gpus = launch.worker_gpus(visible, machine.gpu_count, engine.parallel.tp_size)
            engine = with_worker_settings(engine, python, gpus)
        formatter = with_worker_settings(formatter, python) if formatter is not None else None
    if config.handler is None and model_path is not None:
        answers.reason = "the tokenizer is being converted"
        tokenizer_path = tokenizer_files.obtain(
            model_path, launch.cache_dir(environ), environ, view, config.source.load_format
        )
    return _Prepared(engine, resolved.copies, formatter, model_path, tokenizer_path)


def with_worker_settings(
    config: HandlerEngineConfig, python: str, gpus: tuple[str, ...] = ()
) -> HandlerEngineConfig:
    """Return the configuration with the interpreter of its workers and the GPUs of each worker."""
    handler = dataclasses.replace(config.handler, python=python, worker_gpus=gpus)
    return dataclasses.replace(config, handler=handler)


def _needs_model(config: LmiConfig) -> bool:
    """Return whether the server needs the model on this disk. Handlers load their own models, except from S3."""
    return config.handler is None or (config.source.model_id or "").startswith("s3://")


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket, before the model is prepared: a port in use is noticed early, and platforms expect a
    server to accept connections soon. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise CannotListen(f"cannot listen on {_listen_problem(error.errno or 0, host, port)}") from error


def _listen_problem(number: int, host: str, port: int) -> str:
    """Return the address that cannot be used, why, and what to change. number: the error's errno."""
    option = "with --port (for lmi serve also SAGEMAKER_BIND_TO_PORT)"
    if number == errno.EADDRINUSE:
        return f"port {port} of {host}: another process uses it; choose another one {option}"
    if number == errno.EACCES:
        return f"port {port}: no permission; choose one from 1024 on {option}"
    # `create_server` also raises the negative errors of name resolution, and changes the texts of all errors.
    why = os.strerror(number) if number > 0 else "the host name cannot be resolved"
    return f"{host}: {why}; --host must be an address of this machine, such as 0.0.0.0"


def _write_configs(
    paths: RuntimePaths, config: LmiConfig, prepared: _Prepared, machine: Machine, admin_token_digest: str
) -> None:
    engine, copies, formatter = prepared.engine, prepared.copies, prepared.formatter
    web = WebConfig(
        server=config.server,
        engine=engine.engine,
        model_path=engine.model.path,
        max_model_len=engine.model.max_model_len,
        engines=tuple((each.engine_address, str(each.status)) for each in paths.copies(copies)),
        prefix_caching=isinstance(engine, MpiEngineConfig) and engine.cache.prefix_caching,
        places_per_copy=places_per_copy(engine, launch.web_workers(machine.cpu_count)),
        tokenizer_path=str(prepared.tokenizer_path or ""),
        hub_id=model_files.hub_id(config.source),
        formatter_address=paths.formatter.engine_address if formatter else "",
        formatter_status=str(paths.formatter.status) if formatter else "",
        formatter_roles=config.formatter_roles,
        admin_token_digest=admin_token_digest,
        settings_lock=str(paths.settings_lock),
    )
    if formatter is not None:
        paths.formatter.folder.mkdir()
        paths.formatter.engine_config.write_text(formatter.to_json(), encoding="utf-8")
    for number, each in enumerate(paths.copies(copies), 1):
        each.folder.mkdir(exist_ok=True)
        copy_config = engine if copies == 1 else config_of_copy(engine, number)
        each.engine_config.write_text(copy_config.to_json(), encoding="utf-8")
    paths.web_config.write_text(web.to_json(), encoding="utf-8")


def places_per_copy(config: EngineConfig, web_workers: int) -> int:
    """Return each web worker's share of the places in a copy's batch, at least one.

    The share limits how long a known prefix attracts requests. It need not be exact, so it is not updated when the
    batch size changes.
    """
    if isinstance(config, MpiEngineConfig):
        return max(1, config.scheduler.settings.max_running // web_workers)
    return max(1, config.batching.batch_size // web_workers)


def config_of_copy(config: EngineConfig, number: int) -> EngineConfig:
    """Return the configuration of one of several copies, with the copy's number also in the step trace's name."""
    config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, copy=number))
    if not isinstance(config, MpiEngineConfig) or not config.scheduler.step_trace:
        return config
    trace = Path(config.scheduler.step_trace)
    copy_trace = str(trace.with_stem(f"{trace.stem}-copy{number}"))
    return dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, step_trace=copy_trace))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the engine, or of several copies of it, and the web server."""

    config: EngineConfig
    copies: int
    has_formatter: bool
    """Whether a user's formatters run beside the engine."""
    paths: RuntimePaths
    environ: Mapping[str, str]
    machine: Machine
    view: ProgressView
    signals: StopSignals

    def until_end(
        self, listener: socket.socket, loading_timeout: float, started: float, before: dict[str, float]
    ) -> int:
        """Start and supervise the engine and the web server. Returns the exit code."""
        open_files = raise_open_files(self.view)
        host, port = listener.getsockname()[:2]
        address = launch.base_url(host, port)
        mpirun = self._mpirun()
        self.signals.raising = False
        with ExitStack() as stack:
            copies = []
            for number, paths in enumerate(self.paths.copies(self.copies), 1):
                control = stack.enter_context(EngineControl(paths.engine_address))
                name = "the engine" if self.copies == 1 else f"copy {number}"
                copies.append(EngineCopy(name, partial(self._start_engine, number, paths, mpirun), control))
            helpers = [self._start_formatter()] if self.has_formatter else []
            web = self._start_web(listener, launch.web_connections(open_files))
            # From now on only gunicorn listens: once it stops, connections are refused instead of waiting.
            listener.close()
            before["starting processes"] = time.monotonic() - started - sum(before.values())
            first = copies[0]

            def still_running() -> bool:
                return first.child.poll() is None and not self.signals.count

            def announce_ready() -> None:
                seconds = time.monotonic() - started
                stats = first.control.stats(_STATS_SECONDS, still_running)
                if stats is not None:
                    self.view.say(announce.time_line(seconds, before, stats.info.load_seconds))
                    # A platform that chose the port sends the requests itself.
                    if self.config.engine != "Handler" and not self.environ.get(launch.BIND_TO_PORT):
                        has_template = announce.has_chat_template(Path(self.config.model.path))
                        self.view.say(f"try it:\n{announce.curl_line(host, port, has_template)}")
                    self.view.say(announce.ready_line(stats.info, address, self.copies))
                elif still_running():
                    self.view.say(
                        f"warning: the engine is ready but did not respond within {_STATS_SECONDS:g} s"
                    )

            lock = self.paths.settings_lock
            supervisor = Supervisor(copies, web, self.signals, self.view.say, lock, helpers=helpers)
            return supervisor.run(loading_timeout, announce_ready)

    def _num_heartbeats(self) -> int:
        """Return the number of heartbeats: one per rank, or dispatcher and generating process, or a dispatcher only."""
        return {"MPI": self.config.parallel.tp_size, "Python": 2}.get(self.config.engine, 1)

    def _start_engine(
        self, number: int, paths: RuntimePaths, mpirun: launch.MpiRun | None
    ) -> tuple[Child, StatusBoard]:
        """Start a copy's engine, or restart it.

        Raises: OSError: it cannot be started. Its board then says FAILED, so that clients look for the next board.
        """
        if self.copies > 1:
            paths.clear()
        board = paths.new_board(self._num_heartbeats())
        config = self.config if self.copies == 1 else config_of_copy(self.config, number)
        command = launch.engine_command(config.engine, paths)
        env = launch.engine_environment(self.environ, config, paths)
        if mpirun is not None:
            command, env = launch.on_ranks(mpirun, config.parallel.tp_size, command, env)
        name = "engine" if mpirun or config.engine != "MPI" else "engine rank 0"
        name = name if self.copies == 1 else f"copy {number}"
        # On SIGTERM, which systemd sends to every process, mpirun would kill the ranks.
        try:
            return Child.start(name, command, env, blocked=signal.SIGTERM if mpirun else 0), board
        except OSError as error:
            board.set_state(EngineState.FAILED, str(error))
            raise

    def _mpirun(self) -> launch.MpiRun | None:
        """Return the mpirun that starts several ranks; None for one rank. Raises NoMpiRun."""
        if self.config.parallel.tp_size == 1 or self.config.engine != "MPI":
            return None
        mpirun = mpi.mpirun_for(self.environ)
        if mpirun.loopback is None:
            cache = launch.cache_dir(self.environ)
            self.view.say(
                "note: mpirun listens on all network interfaces, because the library that prevents it could not be"
                f" compiled or cannot be loaded (needs a C compiler and a cache, {cache}, that is writable, is not"
                " mounted noexec, and has no space or colon in its path)"
            )
        return mpirun

    def _start_formatter(self) -> Helper:
        paths = self.paths.formatter
        board = StatusBoard.create(paths.status, 1)
        env = {**self.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        return Helper(Child.start("formatters", launch.engine_command("Handler", paths), env), board)

    def _start_web(self, listener: socket.socket, connections: int) -> Child:
        workers = launch.web_workers(self.machine.cpu_count)
        env = launch.web_environment(self.environ, self.paths, workers)
        if workers > 1:
            self.paths.metrics.mkdir(mode=0o700)
        app, folder = launch.web_app(self.paths), self.paths.folder
        command = launch.web_command(app, folder, listener.fileno(), workers, connections)
        return Child.start("web server", command, env, nice=_WEB_NICE, pass_fds=[listener.fileno()])


def raise_open_files(view: ProgressView) -> int:
    """Raise the limit of open files of this process and its children to `_OPEN_FILES` if possible, and return it.

    Each connection of the web process is an open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < _FEW_OPEN_FILES:
        view.say(
            f"note: a process may open only {limit} files (ulimit -n), so only few clients can be connected at once;"
            f" allow at least {_FEW_OPEN_FILES}"
        )
    return limit
