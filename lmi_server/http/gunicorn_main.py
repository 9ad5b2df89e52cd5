"""Run gunicorn without imports from the current folder: `python -P -m lmi_server.http.gunicorn_main`."""

from __future__ import annotations

import time

from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.arbiter import Arbiter

_PAUSE_SECONDS = 10.0
"""The master checks its workers about every second. A longer gap means that the container was paused."""


class PausableArbiter(Arbiter):
    """A master that does not kill its workers after a pause of the container, in which nobody sends heartbeats."""

    _last_check = 0.0
    _resumed = 0.0

    def murder_workers(self) -> None:
        """Kill workers without a heartbeat for `timeout` seconds, counted at the earliest from the last pause."""
        now = time.monotonic()
        if now - self._last_check > _PAUSE_SECONDS:
            self._resumed = now
        self._last_check = now
        if now - self._resumed > self.timeout:
            super().murder_workers()


class _Application(WSGIApplication):
    def chdir(self) -> None:
        """Do not change the folder or `sys.path`: the current folder may be that of a model."""

    def run(self) -> None:
        PausableArbiter(self).run()


if __name__ == "__main__":
    _Application("%(prog)s [OPTIONS] [APP_MODULE]", prog="gunicorn").run()
