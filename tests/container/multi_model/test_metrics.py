"""`GET /metrics` of the router."""

from __future__ import annotations

import threading

import pytest
from flask.testing import FlaskClient

from container.multi_model import metrics
from lmi_server.metrics import _STATS_TIMEOUT_SECONDS
from tests.container.multi_model.fakes import FakeModels


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_SECONDS", 200.0)


def test_metrics_are_labelled_with_their_model(folder: FlaskClient, lab: FakeModels) -> None:
    folder.post("/predictions/b", data=b"x")
    lab.taken[lab.servers[0].pid] = 7
    text = folder.get("/metrics").data.decode()
    assert 'lmi_model_loaded{model="a"} 0.0' in text
    assert 'lmi_model_loaded{model="b"} 1.0' in text
    assert 'lmi_model_memory_bytes{model="b"} 7.0' in text
    assert 'lmi_steps_total{model="b"} 3.0' in text


def test_the_engines_own_label_for_the_model_is_kept(folder: FlaskClient, lab: FakeModels) -> None:
    lab.metrics = '# TYPE lmi_engine_info gauge\nlmi_engine_info{model="llama",engine="MPI"} 1.0\n'
    folder.post("/predictions/b", data=b"x")
    text = folder.get("/metrics").data.decode()
    assert 'lmi_engine_info{engine="MPI",exported_model="llama",model="b"} 1.0' in text


def test_models_are_scraped_at_the_same_time(folder: FlaskClient, lab: FakeModels) -> None:
    """Prometheus waits for 10 s, and each of several models that hang may take half of that."""
    for name in ("a", "b"):
        folder.post(f"/predictions/{name}", data=b"x")
    lab.scrapes = threading.Barrier(2, timeout=30.0)
    text = folder.get("/metrics").data.decode()
    assert 'lmi_steps_total{model="a"} 3.0' in text
    assert 'lmi_steps_total{model="b"} 3.0' in text


def test_a_model_whose_server_does_not_respond_is_not_up(folder: FlaskClient, lab: FakeModels) -> None:
    for name in ("a", "b"):
        folder.post(f"/predictions/{name}", data=b"x")
    lab.servers[0].http.close()
    text = folder.get("/metrics").data.decode()
    assert 'lmi_engine_up{model="a"} 0.0' in text
    assert 'lmi_steps_total{model="b"} 3.0' in text
    lab.servers[0].ended.set()


def test_a_model_has_time_to_report_that_its_engine_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 2 * _STATS_TIMEOUT_SECONDS < metrics._SECONDS < 10.0
