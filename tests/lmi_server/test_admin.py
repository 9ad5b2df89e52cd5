"""`GET` and `PATCH /admin/scheduler`: the admin token, accepted settings, refusals of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import SchedulerSettings
from engines.health import EngineState, Health
from lmi_server.apis.admin import FIELDS
from lmi_server.properties.options import by_name
from tests.lmi_server.bodies import error_of
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import ADMIN_TOKEN, FakeEngine

PATH = "/admin/scheduler"
CURRENT_SETTINGS = {
    "max_rolling_batch_size": 32,
    "max_rolling_batch_prefill_tokens": 256,
    "max_num_batched_tokens": 256,
    "scheduling_policy": "fcfs",
    "enable_chunked_prefill": True,
    "waiting_served_ratio": 0.3,
    "max_waiting_tokens": 20,
    "waiting_steps": 0,
    "job_queue_size": 1000,
    "max_queued_tokens": None,
}


def with_token(client: FlaskClient) -> FlaskClient:
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {ADMIN_TOKEN}"
    return client


@pytest.fixture
def client(client: FlaskClient) -> FlaskClient:
    """A client that sends the admin token with every request."""
    return with_token(client)


def error(reply: TestResponse, status: int) -> str:
    assert reply.status_code == status
    assert set(reply.get_json()) == {"error", "code"}
    return error_of(reply)


def test_fields_are_options_and_cover_every_setting() -> None:
    assert set(FIELDS) <= set(by_name())
    assert set(FIELDS.values()) == set(SchedulerSettings.__slots__)


def test_patch_changes_settings_and_returns_the_result(client: FlaskClient, engine: FakeEngine) -> None:
    changes: dict[str, Any] = {
        "max_rolling_batch_size": 4,
        "max_rolling_batch_prefill_tokens": 128,
        "scheduling_policy": "fair",
        "enable_chunked_prefill": False,
        "waiting_served_ratio": 1,
        "max_waiting_tokens": 5,
        "waiting_steps": 2,
        "job_queue_size": 10,
        "max_queued_tokens": 5000,
    }
    assert client.patch(PATH, json=changes).get_json() == {**CURRENT_SETTINGS, **changes}
    assert engine.settings == SchedulerSettings(4, 128, 256, 10, 5000, "fair", False, 1.0, 5, 2)
    assert client.patch(PATH, json={"max_queued_tokens": None}).get_json()["max_queued_tokens"] is None
    assert client.patch(PATH, json={}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"max_rolling_batch_size": 0}, ["max_rolling_batch_size", "0", "from 1 to 4096"]),
        ({"max_rolling_batch_size": "8"}, ["max_rolling_batch_size", '"8"', "an integer"]),
        ({"max_rolling_batch_size": None}, ["max_rolling_batch_size", "null", "an integer"]),
        ({"max_rolling_batch_size": 10**400}, ["max_rolling_batch_size", "from 1 to 4096"]),
        ({"max_num_batched_tokens": -1}, ["max_num_batched_tokens", "-1"]),
        ({"scheduling_policy": "fifo"}, ["scheduling_policy", "fifo", "fcfs"]),
        ({"scheduling_policy": 1}, ["scheduling_policy", "1", "fcfs"]),
        ({"enable_chunked_prefill": "true"}, ["enable_chunked_prefill", "true or false"]),
        ({"waiting_served_ratio": -0.1}, ["waiting_served_ratio", "-0.1", "from 0"]),
        ({"max_queued_tokens": 0}, ["max_queued_tokens", "0", "null for no limit"]),
        ({"batch_size": 4}, ["batch_size", "4", "known", "max_rolling_batch_size"]),
        ({"max_rolling_batchsize": 4}, ["did you mean 'max_rolling_batch_size'"]),
        ({"block_size": 16}, ["block_size"]),
        ([1], ["body", "a JSON object"]),
    ],
)
def test_a_refused_patch_changes_nothing(changes: Any, mentions: list[str], client: FlaskClient) -> None:
    if isinstance(changes, dict):
        changes = {"job_queue_size": 7, **changes}
    text = error(client.patch(PATH, json=changes), 400)
    for mention in mentions:
        assert mention in text
    assert client.get(PATH).get_json() == CURRENT_SETTINGS


def test_refusals_of_the_engine_use_option_names(client: FlaskClient, engine: FakeEngine) -> None:
    engine.refused = {"max_num_seqs": "given 64; accepted: at most 32, for which memory was set aside"}
    text = error(client.patch(PATH, json={"max_rolling_batch_size": 64, "job_queue_size": 7}), 400)
    assert text == (
        "max_rolling_batch_size: given 64; accepted: at most 32, for which memory was set aside; nothing was changed"
    )
    assert client.get(PATH).get_json() == CURRENT_SETTINGS


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {ADMIN_TOKEN}x",
        f"Bearer {ADMIN_TOKEN[:-1]}",
        f"Bearer {ADMIN_TOKEN.lower()}",
        "Bearer \xff\udcff",
        f"Basic {ADMIN_TOKEN}",
        ADMIN_TOKEN,
    ],
)
def test_requests_without_the_token_are_rejected(
    authorization: str | None, make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client()
    headers = {} if authorization is None else {"Authorization": authorization}
    local = {"REMOTE_ADDR": "127.0.0.1"}
    for method in ("GET", "PATCH", "HEAD", "OPTIONS"):
        reply = client.open(
            PATH, method=method, json={"job_queue_size": 7}, headers=headers, environ_overrides=local
        )
        assert reply.status_code == 401
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        if method != "HEAD":
            problem = "not the admin token" if authorization else "missing"
            accepted = 'accepted: "Bearer TOKEN", where TOKEN is the value of LMI_ADMIN_TOKEN'
            assert error(reply, 401) == f"Authorization: {problem}; {accepted}"
            assert ADMIN_TOKEN not in reply.text
    assert engine.settings == SchedulerSettings(32, 256, 256, 1000)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_the_token_is_accepted_from_any_address(scheme: str, make_client: MakeClient) -> None:
    """Proxies and `docker run -p` change addresses and hosts."""
    headers = {
        "Authorization": f"{scheme} {ADMIN_TOKEN}",
        "Host": "models.example",
        "X-Forwarded-For": "10.0.0.7",
    }
    reply = make_client().get(PATH, headers=headers, environ_overrides={"REMOTE_ADDR": "172.17.0.1"})
    assert reply.get_json() == CURRENT_SETTINGS


def test_admin_routes_do_not_exist_if_no_token_is_configured(make_client: MakeClient) -> None:
    client = make_client(admin_token="")
    for authorization in (f"Bearer {ADMIN_TOKEN}", "Bearer ", "Bearer"):
        client.environ_base["HTTP_AUTHORIZATION"] = authorization
        for reply in (client.get(PATH), client.patch(PATH, json={"job_queue_size": 7})):
            assert "needs LMI_ADMIN_TOKEN" in error(reply, 404)


def test_engine_python_has_no_scheduler(make_client: MakeClient, engine: FakeEngine) -> None:
    engine.settings = None
    client = with_token(make_client(engine_kind="Python"))
    for reply in (client.get(PATH), client.patch(PATH, json={})):
        assert "engine=Python has no scheduler settings" in error(reply, 404)


def test_an_engine_that_does_not_answer_is_a_503(client: FlaskClient, engine: FakeEngine) -> None:
    engine.answers = False
    assert "did not answer within 10 s" in error(client.get(PATH), 503)
    assert "may still take effect" in error(client.patch(PATH, json={"job_queue_size": 7}), 503)


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_changes_are_rejected_unless_the_engine_is_ready(
    state: EngineState, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.state = Health(state, "because", 0.0)
    reply = client.patch(PATH, json={"job_queue_size": 7})
    assert engine.state.summary() in error(reply, 503)
    assert "Retry-After" in reply.headers


def test_copies_are_listed_with_their_state(client: FlaskClient, engine: FakeEngine) -> None:
    up, down = Health(EngineState.READY, "", 0.0), Health(EngineState.FAILED, "killed", 0.0)
    first = {"copy": 1, "serves": True, "state": "ready", "reason": "ready"}
    second = {"copy": 2, "serves": False, "state": "failed", "reason": "the engine has failed: killed"}
    assert client.get("/admin/copies").get_json() == {"copies": [first]}
    engine.state = replace(up, copies=(up, down))
    assert client.get("/admin/copies").get_json() == {"copies": [first, second]}
    error(client.get("/admin/copies", headers={"Authorization": ""}), 401)
