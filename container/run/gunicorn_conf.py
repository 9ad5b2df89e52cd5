"""Settings of gunicorn. `container/run/launch.py` passes address, workers and connections as arguments.

The time limits of connections are in `lmi_server/http/connection.py`.
"""

from __future__ import annotations

import gc
from typing import Any

from engines.process import die_with_parent

worker_class = "lmi_server.http.gevent_worker.Worker"
keepalive = 3700
"""Seconds that an idle connection is kept, longer than load balancers (10 minutes) and Envoy (1 hour) keep theirs: a
request that arrives on a closed connection is lost."""
timeout = 120
"""Seconds without a heartbeat after which a worker is replaced. Long, because the model may keep the machine busy."""
graceful_timeout = 29
"""Seconds for responses in flight at shutdown. The engine has ended every request, but clients may read slowly."""
backlog = 4096
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 32 * 1024
accesslog = None
errorlog = "-"
loglevel = "warning"
control_socket_disable = True
# No proxy is trusted: its clients could send these headers too, and change the path.
forwarded_allow_ips = ""
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
proc_name = "lmi-web"


def post_fork(server: Any, worker: Any) -> None:
    """Have the kernel kill a worker when gunicorn's master ends, even if the master is killed."""
    die_with_parent()


def post_worker_init(worker: Any) -> None:
    """Exempt loaded modules from garbage collection, which would delay streams."""
    gc.collect()
    gc.freeze()
