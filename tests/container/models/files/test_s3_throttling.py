"""Waits that S3 asks for, and the number of attempts that the user sets."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.response import StreamingBody

from container.models.files import retry
from container.models.files.remote import RemoteFile
from container.models.files.s3 import ranges
from container.models.files.s3.address import S3Address
from tests.container.models.files.s3_lab import S3Lab, same
from tests.support.faulty_proxy import Matches, answer, every_object, listing, object_named

WEIGHTS = object_named("model.safetensors")


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits with a note, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(retry, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(("where", "name"), [(listing, "/"), (WEIGHTS, "/model.safetensors")])
def test_a_wait_of_at_most_a_minute_gets_a_note(
    where: Matches, name: str, s3_small: S3Lab, small_model: Path, slept: list[float]
) -> None:
    s3_small.proxy.fault(where, answer(503, "SlowDown", Retry_After="60"), times=1)
    folder, log = s3_small.obtain()
    assert same(folder, small_model)
    assert slept == [60.0]
    why = "S3 keeps throttling requests (SlowDown); retry after 60 s; waiting"
    assert f"note: {s3_small.address()}{name}: {why}\n" in log


@pytest.mark.parametrize(("seconds", "num_waits"), [(61, 0), (60, 3)])
@pytest.mark.parametrize("status", [429, 503])
def test_a_longer_wait_or_a_fourth_one_is_an_error(
    seconds: int, num_waits: int, status: int, s3_tiny: S3Lab, slept: list[float]
) -> None:
    s3_tiny.proxy.fault(listing, answer(status, "Busy", Retry_After=str(seconds)))
    assert f"throttling requests (Busy); retry after {seconds} s" in s3_tiny.refused()
    assert slept == [float(seconds)] * num_waits
    assert len(s3_tiny.proxy.requests) == 1 + num_waits


def test_a_short_wait_is_one_of_the_retries(s3_small: S3Lab, small_model: Path, slept: list[float]) -> None:
    s3_small.proxy.fault(every_object, answer(503, "SlowDown", Retry_After="1"), times=2)
    folder, log = s3_small.obtain()
    assert same(folder, small_model)
    assert slept == []
    assert "waiting" not in log


def test_a_wait_keeps_the_bytes_that_were_read(
    s3_small: S3Lab, small_model: Path, slept: list[float]
) -> None:
    proxy = s3_small.proxy

    def throttle() -> None:
        proxy.fault(WEIGHTS, answer(503, "SlowDown", Retry_After="60"), times=1)
        proxy.cut_at([1 << 10, 2 << 10, 3 << 10])

    proxy.when_sent(12 << 20, throttle)
    folder, log = s3_small.obtain()
    assert same(folder, small_model)
    assert slept == [60.0]
    assert "100 %" in log
    size = sum((small_model / name).stat().st_size for name in ("model.safetensors", "config.json"))
    assert proxy.object_bytes < size + (8 << 20)


@pytest.mark.parametrize("attempts", [1, 20])
@pytest.mark.parametrize("headers", [{}, {"Retry_After": "60"}], ids=["", "Retry-After"])
@pytest.mark.usefixtures("impatient")
def test_the_user_may_set_the_number_of_attempts(
    attempts: int, headers: dict[str, str], s3_tiny: S3Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(retry, "_MAX_DELAY_SECONDS", 0.01)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(attempts))
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    for where in (listing, object_named("config.json")):
        s3_tiny.proxy.heal()
        s3_tiny.proxy.fault(where, answer(503, "SlowDown", **headers))
        assert "S3 keeps throttling requests (SlowDown)" in s3_tiny.refused()
        assert len([asked for asked in s3_tiny.proxy.requests if where(asked)]) == attempts


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_number_of_attempts_that_is_none_is_an_error(
    value: str, s3_tiny: S3Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", value)
    message = f"AWS_MAX_ATTEMPTS: not a number of attempts (got '{value}'); allowed: 1 or more"
    assert s3_tiny.refused() == message
    assert s3_tiny.proxy.requests == []


def test_a_rank_that_reads_weights_waits_too(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content, failures = b"0123456789", iter(range(2))

    def get_object(**_: Any) -> dict[str, object]:
        if next(failures, None) is not None:
            described = {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "60"}}
            raise ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": described}, "GetObject")
        headers = {"ETag": "v1", "ContentRange": "bytes 0-9/10", "ContentLength": 10}
        return {**headers, "Body": StreamingBody(io.BytesIO(content), 10)}

    files = (RemoteFile("x", len(content), "v1"),)
    monkeypatch.setattr(ranges, "connect", lambda environ: SimpleNamespace(get_object=get_object))
    monkeypatch.setattr(ranges, "read_manifest", lambda folder: (S3Address("b", "m/"), files))
    notes: list[str] = []
    monkeypatch.setattr(logging.getLogger(ranges.__name__), "warning", notes.append)
    out = bytearray(len(content))
    ranges.S3Ranges(tmp_path).read("x", 0, memoryview(out))
    assert bytes(out) == content
    assert slept == [60.0, 60.0]
    assert (
        notes == ["note: s3://b/m/x: S3 keeps throttling requests (SlowDown); retry after 60 s; waiting"] * 2
    )
