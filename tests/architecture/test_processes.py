"""Modules that a process loads, read from `sys.modules` of a fresh process."""

from __future__ import annotations

import importlib.util
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


def test_the_web_process_starts_without_torch() -> None:
    if importlib.util.find_spec("lmi_server") is None or importlib.util.find_spec("lmi_server.wsgi") is None:
        pytest.skip("lmi_server.wsgi does not exist")
    loaded = _loaded("lmi_server.wsgi", "engines.client")
    assert {"lmi_server", "engines", "flask", "zmq"} <= loaded
    assert not loaded & {"torch", "transformers", "numpy", "triton", "lmi_kernels", "mpi4py"}


def test_the_multi_model_router_starts_without_torch() -> None:
    heavy = {"torch", "transformers", "triton", "mpi4py", "boto3"}
    assert not _loaded("container.multi_model.router") & heavy


def test_the_multi_model_worker_loads_no_libraries_before_gevent_patches_it() -> None:
    assert not _loaded("container.multi_model.worker") & {"urllib3", "flask", "numpy"}


@pytest.mark.parametrize("imported", ["engines.client", "engines.python.dispatcher"])
def test_client_and_dispatcher_need_neither_torch_nor_a_web_framework(imported: str) -> None:
    loaded = _loaded(imported)
    assert {"engines", "zmq", "msgspec"} <= loaded
    assert not loaded & {"torch", "transformers", "triton", "lmi_kernels", "mpi4py", "flask", "numpy"}


def test_the_scheduler_is_plain_python() -> None:
    loaded = _loaded(
        "engines.mpi.scheduler.scheduler",
        "engines.mpi.cache.block_manager",
        "engines.mpi.scheduler.step_plan",
    )
    assert not (loaded - set(sys.stdlib_module_names)) & {
        "torch", "numpy", "zmq", "msgspec", "flask", "gevent", "mpi4py", "lmi_kernels", "transformers",
    }  # fmt: skip


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


def test_the_kernels_folder_does_not_shadow_another_package() -> None:
    program = (
        "import importlib.util\n"
        "spec = importlib.util.find_spec('kernels')\n"
        "print(spec is None or spec.origin is None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPO_ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
