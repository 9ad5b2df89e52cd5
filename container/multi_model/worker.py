"""gunicorn worker of the router.

gunicorn loads this module before gevent patches the standard library, so it imports nothing else of the router.
"""

from __future__ import annotations

from types import FrameType

import gevent

from lmi_server.http.gevent_worker import Worker


class RouterWorker(Worker):
    """Stops the models' servers as soon as the signal arrives. They drain while it still forwards their responses."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.booted:  # otherwise there is no app yet, and `run` closes it
            gevent.spawn(self.wsgi.extensions["models"].close)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.wsgi.extensions["models"].close()
