"""gunicorn settings of the router: those of a single model's server, except for its worker."""

from container.run.gunicorn_conf import *  # noqa: F403

worker_class = "container.multi_model.worker.RouterWorker"
