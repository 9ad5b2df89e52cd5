"""gunicorn settings of the router: those of a single model's server, plus time for the models' servers to stop."""

from container.run.gunicorn_conf import *  # noqa: F403

worker_class = "container.multi_model.worker.RouterWorker"
graceful_timeout = 29
"""Seconds at shutdown for responses in flight and for the models' servers."""
