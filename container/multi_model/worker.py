"""gunicorn worker of the router.

gunicorn loads this module before gevent patches the standard library, so it imports nothing else of the router.
"""

from __future__ import annotations

from types import FrameType

import gevent

from lmi_server.http.gevent_worker import Worker


class RouterWorker(Worker):
    """Stops the models' servers as soon as the signal arrives, and itself when they have ended.

    Until then it forwards their responses, and answers new requests with 503. That gunicorn's master has closed its
    own listening socket makes no difference, because the worker's is still open.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.booted:
            gevent.spawn(self._drain, sig, frame)
        else:  # there is no app yet, and `run` closes it
            super().handle_exit(sig, frame)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.wsgi.extensions["models"].close()

    def _drain(self, sig: int, frame: FrameType | None) -> None:
        try:
            self.wsgi.extensions["models"].close()
        finally:
            super().handle_exit(sig, frame)
