"""The tenant of a request, from its headers."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.lmi_server.fakes import FakeEngine
from tests.support.logs import Logs

LMI = ("/invocations", {"inputs": "Hello"}, 424)
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}, 400)


def tenant(client: FlaskClient, engine: FakeEngine, headers: dict[str, str]) -> str:
    assert client.post(LMI[0], json=LMI[1], headers=headers).status_code == 200
    return engine.requests[-1].tenant


def test_without_a_header_there_is_no_tenant(client: FlaskClient, engine: FakeEngine) -> None:
    assert tenant(client, engine, {}) == ""
    assert tenant(client, engine, {"Authorization": "Basic abc"}) == ""
    assert tenant(client, engine, {"Authorization": "Bearer "}) == ""


def test_the_tenant_header_overrides_the_api_key(client: FlaskClient, engine: FakeEngine) -> None:
    headers = {"X-Tenant-Id": "acme/eu-1", "Authorization": "Bearer secret"}
    assert tenant(client, engine, headers) == "id:acme/eu-1"
    assert tenant(client, engine, {"X-Tenant-Id": "~" * 128}) == "id:" + "~" * 128


def test_an_api_key_becomes_a_stable_hash(client: FlaskClient, engine: FakeEngine, logs: Logs) -> None:
    seen = tenant(client, engine, {"Authorization": "Bearer sk-secret-1"})
    assert seen == "key:7048b3c946f642ae"
    assert tenant(client, engine, {"authorization": "bearer sk-secret-1"}) == seen
    assert tenant(client, engine, {"api-key": "sk-secret-1"}) == seen
    assert tenant(client, engine, {"x-api-key": "sk-secret-1"}) == seen
    assert tenant(client, engine, {"x-api-key": "sk-secret-2"}) != seen
    # The header cannot impersonate the tenant of a key.
    assert tenant(client, engine, {"X-Tenant-Id": seen}) != seen
    assert "sk-secret" not in logs.text
    assert "sk-secret" not in repr(engine.requests)


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 129, "caf\xe9", "tab\there"])
def test_an_invalid_tenant_name_is_refused(name: str, client: FlaskClient, engine: FakeEngine) -> None:
    for path, body, status in (LMI, CHAT):
        reply = client.post(path, json=body, headers={"X-Tenant-Id": name})
        assert reply.status_code == status
        assert "X-Tenant-Id" in reply.text
        assert "1 to 128 visible ASCII" in reply.text
    assert engine.requests == []


def test_all_choices_of_a_request_have_the_same_tenant(client: FlaskClient, engine: FakeEngine) -> None:
    body = {"prompt": ["Hello", "Hi"], "n": 2}
    client.post("/v1/completions", json=body, headers={"X-Tenant-Id": "acme"})
    assert [request.tenant for request in engine.requests] == ["id:acme"] * 4
