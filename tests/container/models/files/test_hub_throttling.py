"""Waits that the hub asks for, and time limits that the user sets."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable, retry
from container.models.files.hub import remote
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.hub_server import Fault, HubServer
from tests.support.model_files import content, model

ID = "owner/tiny"
STORE = "model.safetensors/"
"""Part of a path that only occurs on the storage host."""
Obtain = Callable[[], Path]


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits with a note, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(retry, "sleep", slept.append)
    return slept


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def obtain(hub: HubServer, cache: Path, log: io.StringIO) -> Obtain:
    hub.commit(ID, model())
    return lambda: model_files.obtain(ModelSource(ID), LogLines(log), cache)


def throttled(where: str, seconds: int = 9, times: int = 1, status: int = 429) -> Fault:
    return Fault(where, times, status, {"Retry-After": str(seconds)})


@pytest.mark.parametrize("where", ["/api/models/", "/tokenizer.json", STORE])
@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_of_at_most_a_minute_gets_a_note(
    where: str, status: int, hub: HubServer, obtain: Obtain, slept: list[float], log: io.StringIO
) -> None:
    hub.break_next(throttled(where, 60, times=3, status=status))
    assert content(obtain()) == model()
    assert slept == [60.0] * 3
    notes = [line for line in log.getvalue().splitlines() if line.endswith("; waiting")]
    assert len(notes) == 3
    assert all(f"(status {status})" in note and "retry after 60 s" in note for note in notes)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RateLimit": '"api";r=0;t=41', "Retry-After": "77"}, 41.0),
        ({"RateLimit": '"api";r=5;t=77', "Retry-After": "41"}, 41.0),
    ],
)
def test_the_hubs_own_header_comes_first(
    headers: Mapping[str, str], seconds: float, hub: HubServer, obtain: Obtain, slept: list[float]
) -> None:
    hub.break_next(Fault("/api/models/", status=429, headers=headers))
    obtain()
    assert slept == [seconds]


@pytest.mark.parametrize("where", ["/api/models/", "/tokenizer.json"])
@pytest.mark.parametrize(("seconds", "num_waits"), [(61, 0), (60, 3)])
def test_a_longer_wait_or_a_fourth_one_is_an_error(
    where: str, seconds: int, num_waits: int, hub: HubServer, obtain: Obtain, slept: list[float]
) -> None:
    hub.break_next(throttled(where, seconds, times=99))
    with pytest.raises(ModelNotAvailable, match=rf"\(status 429\); retry after {seconds} s; set HF_TOKEN"):
        obtain()
    assert len(hub.paths(where)) == 1 + num_waits
    assert slept == [float(seconds)] * num_waits


def test_a_short_wait_is_one_of_the_retries(
    hub: HubServer, obtain: Obtain, slept: list[float], log: io.StringIO
) -> None:
    for where in ("/api/models/", STORE):
        hub.break_next(throttled(where, 1))
    began = time.monotonic()
    obtain()
    assert time.monotonic() - began >= 2
    assert slept == []
    assert "waiting" not in log.getvalue()


def test_a_download_that_goes_on_between_waits_is_not_limited(
    hub: HubServer, obtain: Obtain, slept: list[float], log: io.StringIO
) -> None:
    for _ in range(7):
        hub.break_next(Fault(STORE, cut_after=50_000))
        hub.break_next(throttled(STORE, 6))
    assert content(obtain()) == model()
    assert slept == [6.0] * 7
    assert "100 %" in log.getvalue()


def test_a_cached_copy_is_used_instead_of_waiting(
    hub: HubServer, obtain: Obtain, slept: list[float], log: io.StringIO
) -> None:
    folder = obtain()
    hub.break_next(throttled("/api/models/"))
    assert obtain() == folder
    assert slept == []
    assert "retry after 9 s; set HF_TOKEN for a higher limit; using the cached copy" in log.getvalue()


def test_requests_for_sizes_go_on_after_a_wait(hub: HubServer, obtain: Obtain, slept: list[float]) -> None:
    hub.lists_sizes = False
    hub.break_next(throttled("/tokenizer_config.json"))
    assert content(obtain()) == model()
    assert slept == [9.0]
    heads = [seen.path.rpartition("/")[2] for seen in hub.seen if seen.method == "HEAD"]
    assert heads.count("tokenizer_config.json") == 2
    assert len(heads) <= 2 * len(model()) - 1


@pytest.fixture
def short_limits(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the default time limits to fractions of a second."""
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.8)
    monkeypatch.setattr(remote, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(retry, "SILENCE_SECONDS", 0.5)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    ("where", "name", "other"),
    [
        ("/api/models/", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"),
        (STORE, "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    ],
)
def test_the_user_may_set_time_limits(
    where: str, name: str, other: str, hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(other, "60")
    hub.break_next(Fault(where, times=99, before=lambda: hub.closing.wait(2.0)))
    with pytest.raises(ModelNotAvailable, match="did not respond in time"):
        obtain()
    monkeypatch.setenv(name, "60")
    num_requests = len(hub.paths(where))
    assert content(obtain()) == model()
    assert len(hub.paths(where)) == num_requests + 1


@pytest.mark.parametrize("name", ["HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"])
@pytest.mark.parametrize("value", ["soon", "-5", "1.5"])
def test_a_time_limit_that_is_no_number_is_an_error(
    name: str, value: str, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(
        ModelNotAvailable, match=rf"{name}: not a whole number of seconds \(got '{value}'\); a"
    ):
        obtain()


def test_a_time_limit_of_zero_is_the_default(obtain: Obtain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0")
    assert content(obtain()) == model()
