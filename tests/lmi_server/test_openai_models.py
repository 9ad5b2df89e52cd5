"""`GET /v1/models`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flask.testing import FlaskClient

from lmi_server.app import create_app
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import FakeEngine, web_config


def test_the_list_contains_lmi(client: FlaskClient) -> None:
    listed = client.get("/v1/models").get_json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert model["id"] == "lmi"
    assert Path(model["root"], "tokenizer.json").is_file(), "clients of vLLM load the tokenizer from it"


def test_the_root_of_a_model_on_a_hub_is_its_id(
    model_folder: Path, engine: FakeEngine, text_model: TextModel
) -> None:
    """The client may run on another machine, which does not have the server's folder."""
    config = replace(web_config(model_folder), hub_id="owner/name")
    [model] = create_app(config, engine, text_model).test_client().get("/v1/models").get_json()["data"]
    assert model["root"] == "owner/name"


def test_any_model_name_is_found(client: FlaskClient) -> None:
    assert client.get("/v1/models/some/model").get_json()["id"] == "some/model"
