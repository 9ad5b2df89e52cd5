"""Clients of a router with fake models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from container.multi_model.app import make_app
from container.multi_model.manager import ModelManager

MAX_BYTES = 1000


class _Client(FlaskClient):
    """A client that reads each response to its end, as a server does."""

    def open(self, *args: Any, **kwargs: Any) -> TestResponse:
        return super().open(*args, **{"buffered": True, **kwargs})


def client_of(manager: ModelManager, root: Path | None = None) -> FlaskClient:
    app = make_app(manager, MAX_BYTES, root)
    app.test_client_class = _Client
    return app.test_client()


def load_model(client: FlaskClient, root: Path, name: str) -> Any:
    return client.post("/models", json={"model_name": name, "url": str(root / name / "model")})
