"""Settings of gunicorn for the front: those of a single model's server, with time for the models to end."""

from container.run.gunicorn_conf import *  # noqa: F403

worker_class = "container.multi_model.worker.FrontWorker"
graceful_timeout = 29
"""Seconds for answers in flight and the models' servers at shutdown."""
