"""`GET /v1/models`."""

from __future__ import annotations

from flask.testing import FlaskClient


def test_the_list_contains_lmi(client: FlaskClient) -> None:
    listed = client.get("/v1/models").get_json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["lmi"]


def test_any_model_name_is_found(client: FlaskClient) -> None:
    assert client.get("/v1/models/some/model").get_json()["id"] == "some/model"
