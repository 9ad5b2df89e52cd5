"""Modules that a process loads, read from `sys.modules` of a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import REPO_ROOT, child_environment

_PROGRAM = """
import importlib, importlib.util, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

BLOCKED = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Blocked())
for name in sys.argv[1].split(","):
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def _loaded(*imported: str, blocked: tuple[str, ...] = ("nothing",)) -> set[str]:
    """The top-level modules in a fresh process that imports `imported` and cannot import `blocked`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, ",".join(imported), ",".join(blocked)],
        cwd=REPO_ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("imported", "expected", "excluded"),
    [
        (
            ("lmi_server.wsgi", "engines.client"),
            {"lmi_server", "engines", "flask", "zmq"},
            {"torch", "transformers", "numpy", "triton", "lmi_kernels", "mpi4py"},
        ),
        (
            ("container.multi_model.router",),
            {"container"},
            {"torch", "transformers", "triton", "mpi4py", "boto3"},
        ),
        # Before gevent has patched it.
        (("container.multi_model.worker",), {"container"}, {"urllib3", "flask", "numpy"}),
        (
            ("engines.python.dispatcher",),
            {"engines", "zmq", "msgspec"},
            {"torch", "transformers", "triton", "lmi_kernels", "mpi4py", "flask", "numpy"},
        ),
        (
            (
                "engines.mpi.scheduler.scheduler",
                "engines.mpi.cache.block_manager",
                "engines.mpi.scheduler.step_plan",
            ),
            {"engines"},
            {"torch", "numpy", "zmq", "msgspec", "flask", "gevent", "mpi4py", "lmi_kernels", "transformers"},
        ),
    ],
    ids=["web process", "multi-model router", "multi-model worker", "dispatcher", "scheduler"],
)
def test_a_process_starts_without(imported: tuple[str, ...], expected: set[str], excluded: set[str]) -> None:
    loaded = _loaded(*imported)
    assert expected <= loaded
    assert not loaded & excluded


def test_the_model_loads_without_web_and_wire_libraries() -> None:
    """A machine with a GPU may lack pyzmq, msgspec, flask, gunicorn and boto3."""
    missing = ("zmq", "msgspec", "flask", "gevent", "gunicorn", "boto3", "mpi4py", "transformers")
    loaded = _loaded(
        "lmi_kernels",
        "engines.mpi.scheduler.scheduler",
        "engines.mpi.runner.loading",
        "engines.models.decoder",
        "engines.sampling.sampler",
        blocked=missing,
    )
    assert "torch" in loaded
    assert not loaded & set(missing)
