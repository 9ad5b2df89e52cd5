"""`GET /v1/models`."""

from __future__ import annotations

from pathlib import Path

from flask.testing import FlaskClient


def test_the_list_contains_lmi(client: FlaskClient) -> None:
    listed = client.get("/v1/models").get_json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert model["id"] == "lmi"
    assert Path(model["root"], "tokenizer.json").is_file(), "clients of vLLM load the tokenizer from it"


def test_any_model_name_is_found(client: FlaskClient) -> None:
    assert client.get("/v1/models/some/model").get_json()["id"] == "some/model"
