"""The router: model selection, forwarding, and status codes of SageMaker's multi-model API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from flask.testing import FlaskClient

from container.multi_model.app import make_app
from engines.errors import Overloaded
from lmi_server.http import body, custom_attributes
from tests.container.multi_model.clients import MAX_BYTES, client_of, load_model
from tests.container.multi_model.fakes import FakeModels
from tests.container.multi_model.test_loading import close_gates
from tests.support.logs import Logs
from tests.support.waiting import wait_until


def test_the_life_cycle_of_a_model(platform: FlaskClient, lab: FakeModels, root: Path) -> None:
    assert platform.get("/ping").status_code == 200
    assert platform.get("/models").json == {"models": []}
    unknown = platform.post("/models/a/invoke", data=b"x")
    assert unknown.status_code == 404
    assert unknown.json["error"] == 'there is no model "a"; no model is loaded: POST /models loads one'
    loaded = load_model(platform, root, "a")
    assert (loaded.status_code, loaded.json) == (200, {"status": 'Model "a" registered.'})
    url = str(root / "a" / "model")
    assert platform.get("/models").json == {
        "models": [{"modelName": "a", "modelUrl": url, "status": "ready"}]
    }
    described = platform.get("/models/a").json
    assert described == {"modelName": "a", "modelUrl": url, "status": "ready", "memoryBytes": 0}
    response = platform.post(
        "/models/a/invoke",
        data=b"x",
        headers={"X-Amzn-SageMaker-Target-Model": "a.tar.gz", "x-request-id": "7"},
    )
    assert response.json == {"model": "model", "path": "/invocations", "bytes": 1}
    assert response.headers["x-request-id"] == "7"
    assert load_model(platform, root, "a").status_code == 409
    assert load_model(platform, root, "b").status_code == 200
    full = load_model(platform, root, "c")
    assert full.status_code == 507
    assert full.json["code"] == 507
    assert "no room" in full.json["error"]
    assert platform.delete("/models/a").status_code == 200
    assert [server.ended.is_set() for server in lab.servers] == [True, False]
    for missing in (
        platform.get("/models/a"),
        platform.delete("/models/a"),
        platform.post("/models/a/invoke"),
    ):
        assert (missing.status_code, missing.json["code"]) == (404, 404)
    assert load_model(platform, root, "c").status_code == 200
    assert 'did you mean "c"' in platform.get("/models/cc").json["error"]


def test_an_unknown_name_lists_the_available_models(folder: FlaskClient) -> None:
    chat = folder.post("/v1/chat/completions", json={"model": "gpt-4o", "messages": []})
    assert chat.status_code == 404
    assert 'there is no model "gpt-4o"; available: a, b, c' in chat.json["error"]["message"]


def test_of_many_available_models_some_are_listed(lab: FakeModels) -> None:
    client = client_of(lab.manager(*(f"chat-{number:02}" for number in range(12))))
    missing = client.get("/models/gpt-4o").json["error"]
    assert missing.endswith(
        "; available: " + ", ".join(f"chat-{number:02}" for number in range(10)) + ", ..."
    )


@pytest.mark.parametrize("path", ["/invocations", "/predictions/none", "/models/none/invoke"])
def test_the_routers_own_errors_return_the_custom_attributes(path: str, folder: FlaskClient) -> None:
    data = b"x" if "none" in path else bytes(MAX_BYTES + 1)

    def returned(attributes: str) -> str | None:
        headers = {custom_attributes.HEADER: attributes}
        response = folder.post(path, data=data, headers=headers)
        assert response.status_code in (404, 413)
        return response.headers.get(custom_attributes.HEADER)

    assert returned("trace=7; x") == "trace=7; x"
    assert returned("x" * 1025) is None, "a model's server refuses them"


def test_a_model_returns_the_custom_attributes_itself(folder: FlaskClient) -> None:
    response = folder.post("/predictions/a", data=b"x", headers={custom_attributes.HEADER: "x=1"})
    assert response.status_code == 200
    assert custom_attributes.HEADER not in response.headers


def test_the_status_of_an_overloaded_router_can_be_set(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = lab.manager("a")

    def refuse(*_: object) -> NoReturn:
        raise Overloaded("too many bodies")

    monkeypatch.setattr(manager, "lease", refuse)
    client = make_app(manager, MAX_BYTES, throttle_status=420).test_client()
    assert client.post("/predictions/a", data=b"x").status_code == 420
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 429


def test_a_model_that_does_not_start_is_a_bad_request(
    platform: FlaskClient, lab: FakeModels, root: Path
) -> None:
    lab.broken["model"] = "the model's server ended with exit code 1: Error: option.dtype: got fp17"
    rejected = load_model(platform, root, "a")
    assert rejected.status_code == 400
    assert "fp17" in rejected.json["error"]
    assert platform.get("/models").json == {"models": []}


def test_the_model_list_is_paginated(lab: FakeModels, root: Path) -> None:
    client = client_of(lab.manager(), root)
    for name in ("c", "a", "b"):
        load_model(client, root, name)
    first = client.get("/models?limit=2").json
    assert [model["modelName"] for model in first["models"]] == ["a", "b"]
    second = client.get(f"/models?limit=2&next_page_token={first['nextPageToken']}").json
    assert [model["modelName"] for model in second["models"]] == ["c"]
    assert "nextPageToken" not in second
    for limit in ("0", "101", "two", "9" * 4301):
        assert client.get(f"/models?limit={limit}").status_code == 400


def test_clients_cannot_load_or_unload_the_models_of_a_folder(folder: FlaskClient) -> None:
    assert folder.post("/models", json={"model_name": "x", "url": "/x"}).status_code == 405
    assert folder.delete("/models/a").status_code == 405


@pytest.mark.parametrize(
    ("path", "forwarded", "options"),
    [
        ("/predictions/b", "/invocations", {"data": b"{}"}),
        ("/predictions/b/1", "/invocations", {"data": b"{}"}),
        ("/models/b/invoke", "/invocations", {"data": b"{}"}),
        ("/invocations?model_name=b", "/invocations", {"data": b"{}"}),
        (
            "/invocations",
            "/invocations",
            {"headers": {"X-Amzn-SageMaker-Custom-Attributes": "x=1; model_name=b"}},
        ),
        ("/invocations", "/invocations", {"json": {"messages": [], "model": "b"}}),
        ("/invocations", "/invocations", {"data": b'{"inputs": "x", "model": "b"}'}),
        (
            "/invocations",
            "/invocations",
            {"data": b'{"inputs": "x", "model": "b"}', "content_type": "application/octet-stream"},
        ),
        ("/v1/chat/completions", "/v1/chat/completions", {"json": {"messages": [], "model": "b"}}),
        ("/v1/completions", "/v1/completions", {"json": {"prompt": "x", "model": "b"}}),
    ],
)
def test_a_request_selects_its_model(
    path: str, forwarded: str, options: dict[str, Any], folder: FlaskClient
) -> None:
    response = folder.post(path, **options)
    assert response.status_code == 200
    assert response.json["model"] == "b"
    assert response.json["path"].partition("?")[0] == forwarded


def test_a_request_without_a_known_model_is_rejected(folder: FlaskClient) -> None:
    rejected = folder.post("/invocations", json={"inputs": "x"})
    assert rejected.status_code == 400
    assert "allowed: a, b, c" in rejected.json["error"]
    assert folder.post("/invocations", data=b'\x89PNG "model"').json == rejected.json
    assert (
        folder.post("/v1/completions", json={"prompt": "x"}).json["error"]["type"] == "invalid_request_error"
    )
    unknown = folder.post("/v1/completions", json={"prompt": "x", "model": "gpt-4"})
    assert unknown.status_code == 404
    assert unknown.json["error"]["code"] == "model_not_found"
    assert "did you mean /v1/chat/completions?" in folder.post("/v1/chat/completion", json={}).get_data(True)
    assert folder.post("/predictions/gpt-4", json={}).status_code == 404


def test_a_single_model_needs_no_name(lab: FakeModels) -> None:
    client = client_of(lab.manager("a"))
    for path in ("/invocations", "/v1/completions"):
        assert client.post(path, json={"model": "any"}).json["model"] == "a"


def test_all_models_are_listed_whether_loaded_or_not(folder: FlaskClient) -> None:
    assert folder.post("/predictions/b", data=b"x").status_code == 200
    listed = folder.get("/v1/models").json
    assert [model["id"] for model in listed["data"]] == ["a", "b", "c"]
    assert folder.get("/v1/models/c").json["id"] == "c"
    assert Path(folder.get("/v1/models/c").json["root"]).name == "c"
    assert "use /v1/chat/completions" in folder.post("/v1/responses", json={}).json["error"]["message"]
    assert folder.get("/v1/models/d").status_code == 404
    states = {model["modelName"]: model["status"] for model in folder.get("/models").json["models"]}
    assert states == {"a": "down", "b": "ready", "c": "down"}


def test_a_stream_is_forwarded_unchanged(folder: FlaskClient, lab: FakeModels) -> None:
    response = folder.post("/predictions/a", data=b"stream")
    assert response.headers["Content-Type"] == "application/jsonlines"
    assert response.data == b'{"token":1}\n{"token":2}\n'
    assert lab.managers[0].model("a").in_flight == 0


def test_the_reason_is_forwarded_and_no_content_type_is_added(folder: FlaskClient) -> None:
    response = folder.post("/predictions/a", data=b"bare")
    assert response.status == "418 Tea"
    assert "Content-Type" not in response.headers


def test_bodies_that_a_model_has_received_do_not_count(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MIN_BYTES_IN_FLIGHT", 2 * MAX_BYTES)
    client = client_of(lab.manager("a"))
    assert client.post("/invocations", data=bytes(900)).status_code == 200
    lab.arrived.acquire()
    lab.go.clear()
    with ThreadPoolExecutor(3) as pool:
        try:
            running = []
            for _ in range(3):  # the previous body has been sent before the next one is read
                running.append(pool.submit(client.post, "/invocations", data=bytes(900)))
                wait_until(lambda: lab.arrived.acquire(blocking=False) or running[-1].done())
        finally:
            lab.go.set()
    assert [one.result().status_code for one in running] == [200] * 3


def test_bodies_that_wait_for_a_load_leave_room_for_those_of_other_models(
    lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MIN_BYTES_IN_FLIGHT", 2 * MAX_BYTES)
    client = client_of(lab.manager("a", "b"))
    assert client.post("/predictions/b", data=bytes(900)).status_code == 200
    close_gates(lab, "a")
    with ThreadPoolExecutor(2) as pool:
        try:
            loading = pool.submit(client.post, "/predictions/a", data=bytes(900))
            wait_until(lambda: "a" in lab.up())
            second = pool.submit(client.post, "/v1/completions", json={"model": "a", "prompt": "x" * 800})
            wait_until(second.done)
            other = client.post("/predictions/b", data=bytes(900))
        finally:
            lab.gates["a"].set()
    assert second.result().status_code == 429
    assert "wait for models to load" in second.result().get_data(True)
    assert (other.status_code, loading.result().status_code) == (200, 200)


def test_what_the_router_answers_itself_is_logged(folder: FlaskClient, logs: Logs) -> None:
    folder.post("/predictions/a", data=b"x")
    assert not any("POST /predictions/a " in message for message in logs.messages)
    folder.post("/predictions/none", data=b"x")
    assert any(
        "POST /predictions/none status=404" in message and message.endswith("finish=model_not_found")
        for message in logs.messages
    )


def test_a_broken_stream_ends_with_an_error_record(folder: FlaskClient) -> None:
    lines = folder.post("/predictions/a", data=b"break").data.splitlines()
    assert lines[:2] == [b'{"token":1}', b'{"token":2}']
    assert lines[2:] == [b'{"error":"the model\'s server has exited","code":424}']


def test_an_exited_server_affects_only_its_own_clients(folder: FlaskClient, lab: FakeModels) -> None:
    for name in ("a", "b"):
        folder.post(f"/predictions/{name}", data=b"x")
    lab.servers[0].http.close()
    died = folder.post("/predictions/a", data=b"x")
    assert died.status_code == 503
    assert died.json["error"] == "the model's server has exited"
    assert folder.post("/predictions/b", data=b"x").json["model"] == "b"
    lab.servers[0].ended.set()


def test_a_body_that_is_too_large_is_rejected(folder: FlaskClient) -> None:
    assert folder.post("/predictions/a", data=b"x" * MAX_BYTES).json["bytes"] == MAX_BYTES
    assert folder.post("/predictions/a", data=b"x" * (MAX_BYTES + 1)).status_code == 413


def test_a_model_in_use_is_not_unloaded_before_its_response(lab: FakeModels) -> None:
    lab.go.clear()
    manager = lab.manager("a", "b", "c", limit=25)
    client, other = client_of(manager), client_of(manager)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(client.post, f"/predictions/{name}", data=b"x") for name in ("a", "b")]
        for _ in futures:
            lab.arrived.acquire()
        third = pool.submit(other.post, "/predictions/c", data=b"x")
        wait_until(lambda: "unloading" in {model.state.value for model in manager.models()})
        assert sorted(lab.up()) == ["a", "b"]
        lab.go.set()
        assert [future.result().json["model"] for future in futures] == ["a", "b"]
        assert third.result().json["model"] == "c"


def test_ping_returns_503_until_every_model_of_the_folder_was_loaded_or_has_failed(lab: FakeModels) -> None:
    lab.broken["b"] = "its files are broken"
    manager = lab.manager("a", "b")
    client = client_of(manager)
    assert client.get("/ping").json == {"status": "Unhealthy", "reason": "models are being loaded"}
    assert client.get("/ping").headers["Retry-After"] == "5"
    assert client.get("/ping").status_code == 503
    assert client.post("/predictions/a", data=b"x").status_code == 200
    assert client.get("/ping").status_code == 503
    manager.load_all()
    assert client.get("/ping").status_code == 200


def test_ping_and_requests_return_503_after_shutdown(lab: FakeModels) -> None:
    manager = lab.manager("a")
    client = client_of(manager)
    manager.close()
    assert client.get("/ping").status_code == 503
    rejected = client.post("/predictions/a", data=b"x")
    assert rejected.status_code == 503
    assert "Retry-After" in rejected.headers
