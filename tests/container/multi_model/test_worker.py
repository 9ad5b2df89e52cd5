"""The router's gunicorn worker during a shutdown."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace

import gevent
from gevent.event import Event

from container.multi_model.worker import RouterWorker


def worker_with(close: Callable[[], object] | None) -> RouterWorker:
    """Return a worker that serves nothing. close: of its models; None if the app is not loaded yet."""
    worker = RouterWorker.__new__(RouterWorker)
    worker.booted, worker.alive, worker._connections = close is not None, True, set()
    worker.wsgi = SimpleNamespace(extensions={"models": SimpleNamespace(close=close)})
    return worker


def test_a_signal_before_the_app_is_loaded_ends_the_worker() -> None:
    worker = worker_with(None)
    worker.handle_exit(signal.SIGTERM, None)
    assert not worker.alive


def test_the_worker_listens_until_the_models_have_ended() -> None:
    closing, ended = Event(), Event()

    def close() -> None:
        closing.set()
        ended.wait()

    worker = worker_with(close)
    worker.handle_exit(signal.SIGTERM, None)
    assert closing.wait(200.0)
    gevent.sleep(0)
    assert worker.alive
    ended.set()
    with gevent.Timeout(200.0):
        while worker.alive:
            gevent.sleep(0)
