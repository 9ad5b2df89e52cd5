"""Part `server`: the server as users start it, on this device. It needs the server's packages and Open MPI, and is left
out without them."""

from __future__ import annotations

import importlib.util

from tests.gpu.context import Context

_PACKAGES = (
    *("boto3", "flask", "gevent", "gunicorn", "javaproperties", "mpi4py", "msgspec", "prometheus_client"),
    *("psutil", "transformers", "zmq"),
)


def run(context: Context) -> None:
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        context.results.missing("the server", f"needs {', '.join(absent)}")
        return
    from tests.gpu import serving

    serving.check(context)
