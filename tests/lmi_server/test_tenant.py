"""Whose request it is, by its headers."""

from __future__ import annotations

import logging

import pytest
from flask.testing import FlaskClient

from tests.lmi_server.fakes import FakeEngine

LMI = ("/invocations", {"inputs": "Hello"}, 424)
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}, 400)


def tenant(client: FlaskClient, engine: FakeEngine, headers: dict[str, str]) -> str:
    assert client.post(LMI[0], json=LMI[1], headers=headers).status_code == 200
    return engine.requests[-1].tenant


def test_without_a_header_there_is_none(client: FlaskClient, engine: FakeEngine) -> None:
    assert tenant(client, engine, {}) == ""
    assert tenant(client, engine, {"Authorization": "Basic abc"}) == ""
    assert tenant(client, engine, {"Authorization": "Bearer "}) == ""


def test_the_header_goes_before_the_key(client: FlaskClient, engine: FakeEngine) -> None:
    headers = {"X-Tenant-Id": "acme/eu-1", "Authorization": "Bearer secret"}
    assert tenant(client, engine, headers) == "id:acme/eu-1"
    assert tenant(client, engine, {"X-Tenant-Id": "~" * 128}) == "id:" + "~" * 128


def test_a_key_is_told_as_a_hash_that_does_not_change(
    client: FlaskClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = tenant(client, engine, {"Authorization": "Bearer sk-secret-1"})
    assert seen == "key:7048b3c946f642ae"
    assert tenant(client, engine, {"authorization": "bearer sk-secret-1"}) == seen
    assert tenant(client, engine, {"api-key": "sk-secret-1"}) == seen
    assert tenant(client, engine, {"x-api-key": "sk-secret-1"}) == seen
    assert tenant(client, engine, {"x-api-key": "sk-secret-2"}) != seen
    # Nobody comes to it by naming it.
    assert tenant(client, engine, {"X-Tenant-Id": seen}) != seen
    assert "sk-secret" not in caplog.text
    assert "sk-secret" not in repr(engine.requests)


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 129, "caf\xe9", "tab\there"])
def test_a_name_that_is_none_is_refused(name: str, client: FlaskClient, engine: FakeEngine) -> None:
    for path, body, status in (LMI, CHAT):
        reply = client.post(path, json=body, headers={"X-Tenant-Id": name})
        assert reply.status_code == status
        assert "X-Tenant-Id" in reply.text
        assert "1 to 128 visible ASCII" in reply.text
    assert engine.requests == []


def test_all_answers_to_a_request_are_one_tenants(client: FlaskClient, engine: FakeEngine) -> None:
    body = {"prompt": ["Hello", "Hi"], "n": 2}
    client.post("/v1/completions", json=body, headers={"X-Tenant-Id": "acme"})
    assert [request.tenant for request in engine.requests] == ["id:acme"] * 4
