"""gunicorn's settings, but for those that `container/run/launch.py` gives as arguments: address, workers, connections.

The time limits of connections stand in `lmi_server/http/connection.py`.
"""

from __future__ import annotations

import ctypes
import gc
import signal
from typing import Any

worker_class = "lmi_server.http.gevent_worker.Worker"
keepalive = 75
"""Seconds that an idle connection is kept; longer than load balancers keep theirs."""
timeout = 120
"""Seconds without a sign of life after which a worker is replaced; the machine may be busy with the model."""
graceful_timeout = 1
"""Seconds that answers under way get at the end; by then the engine has ended every request."""
backlog = 4096
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 32 * 1024
accesslog = None
errorlog = "-"
loglevel = "warning"
control_socket_disable = True
proc_name = "lmi-web"

_PR_SET_PDEATHSIG = 1


def post_fork(server: Any, worker: Any) -> None:
    """A worker does not outlive gunicorn's master, not even one that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def post_worker_init(worker: Any) -> None:
    """What is loaded stays: the garbage collector need not look at it again and again while streams wait."""
    gc.collect()
    gc.freeze()
