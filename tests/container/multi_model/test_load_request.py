"""Fields of `POST /models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.container.multi_model.fakes import FakeModels
from tests.support.logs import Logs


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model_name": "../a", "url": "{root}/a/model"}, "model_name: given"),
        ({"model_name": "", "url": "{root}/a/model"}, "model_name: given"),
        ({"model_name": "a"}, "url: given null"),
        ({"model_name": "a", "url": 7}, "url: given 7"),
        ({"model_name": "a", "url": "{root}/../secret"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "/etc"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "a/model"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "{root}/link"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "file://{root}/%2e%2e/secret"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "s3://bucket/a"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "{root}/a/none"}, "folder not found"),
        ({"model_name": "a", "url": "{root}/a/\u0000"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "file://{root}/a%00"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "file://[a"}, "accepted: a folder below"),
        ({"model_name": "a", "url": "{root}/" + "a" * 300}, "url: given"),
        ({"model_name": "a", "url": "{root}/circle"}, "url: given"),
    ],
)
def test_bad_names_and_urls_are_rejected(
    body: dict[str, Any], words: str, platform: FlaskClient, lab: FakeModels, root: Path
) -> None:
    (root.parent / "secret").mkdir()
    (root / "link").symlink_to(root.parent / "secret")
    (root / "circle").symlink_to(root / "circle")
    body = {
        key: value.replace("{root}", str(root)) if isinstance(value, str) else value
        for key, value in body.items()
    }
    rejected = platform.post("/models", json=body)
    assert rejected.status_code == 400
    assert words in rejected.json["error"]
    assert lab.servers == []


def test_a_file_url_is_accepted(platform: FlaskClient, root: Path) -> None:
    loaded = platform.post("/models", json={"model_name": "a", "url": f"file://{root}/a/model"})
    assert loaded.status_code == 200


def test_a_body_that_is_not_json_is_a_bad_request(platform: FlaskClient) -> None:
    assert platform.post("/models", data=b"{").status_code == 400
    assert platform.put("/models/a").status_code == 405


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("batch_size", 8, "set batch_size in the model's serving.properties"),
        ("min_worker", "2", "set minWorkers in the model's serving.properties"),
        ("engine", "Python", "set engine in the model's serving.properties"),
        ("device", "gpu0", "CUDA_VISIBLE_DEVICES"),
        ("model_version", "2", "under its own model_name"),
        ("synchronous", False, "accepted: true"),
    ],
)
def test_arguments_of_a_load_that_would_have_no_effect_are_refused(
    field: str, value: object, instead: str, platform: FlaskClient, lab: FakeModels, root: Path
) -> None:
    body = {"model_name": "a", "url": str(root / "a" / "model"), field: value}
    refused = platform.post("/models", json=body)
    assert refused.status_code == 400
    assert refused.json["error"].startswith(f"{field}: given {json.dumps(value)}; accepted: ")
    assert instead in refused.json["error"]
    assert lab.servers == []


def test_unknown_arguments_of_a_load_are_logged_and_ignored(
    platform: FlaskClient, root: Path, logs: Logs
) -> None:
    fields = {"model_name": "a", "url": str(root / "a" / "model"), "synchronous": True, "new\n": 1}
    assert platform.post("/models", json={**fields, "batch_size": None}).status_code == 200
    assert logs.warnings == ["POST /models: unknown fields are ignored: 'new\\n'"]


def test_a_load_without_a_body_has_its_arguments_in_the_query(
    platform: FlaskClient, lab: FakeModels, root: Path
) -> None:
    query = {"model_name": "a", "url": str(root / "a" / "model"), "synchronous": "True", "engine": ""}
    assert platform.post("/models", query_string={**query, "batch_size": "8"}).status_code == 400
    assert lab.servers == []
    assert platform.post("/models", query_string=query).status_code == 200
    assert platform.get("/models/a").json["status"] == "ready"
