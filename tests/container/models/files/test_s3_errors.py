"""What goes wrong with S3: one sentence each, in time, and nothing half-made in the cache."""

from __future__ import annotations

import dataclasses
import signal
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from container.models.files.s3 import remote
from container.run.stop_signals import StopRequested, StopSignals
from tests.container.models.files.s3_lab import S3Lab, same
from tests.support.faulty_proxy import (
    Answer,
    Asked,
    Matches,
    answer,
    corrupt,
    every_object,
    everything,
    listing,
    object_named,
    rewrite,
    truncate,
)
from tests.support.model_folders import write_model

WEIGHTS = object_named("model.safetensors")


def head_of(name: str) -> Matches:
    return lambda asked: asked.method == "HEAD" and asked.key.endswith(name)


def test_a_missing_bucket(s3: S3Lab) -> None:
    sentence = dataclasses.replace(s3, bucket="nobodys-bucket").refused()
    assert "s3://nobodys-bucket/" in sentence
    assert "the bucket does not exist" in sentence


def test_an_empty_prefix(s3: S3Lab) -> None:
    sentence = s3.refused()
    assert s3.address() in sentence
    assert "no object under this prefix" in sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "somebody"}, "rejected the access key"),
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "does not match the access key"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no usable AWS credentials"),
        ({"AWS_PROFILE": "nobody"}, "no usable AWS credentials"),
        ({"AWS_ENDPOINT_URL": "not an address"}, "check AWS_ENDPOINT_URL"),
        ({"AWS_REGION": "no region!"}, "check AWS_REGION"),
    ],
)
def test_an_environment_that_leads_nowhere(
    change: dict[str, str], words: str, s3: S3Lab, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.upload(tiny_model)
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    sentence = s3.refused()
    assert words in sentence
    assert "another-secret" not in sentence


@pytest.mark.parametrize(
    ("where", "status", "code", "words"),
    [
        (listing, 403, "AccessDenied", "no permission (403, AccessDenied)"),
        (every_object, 403, "AccessDenied", "no permission (403, AccessDenied)"),
        (listing, 400, "ExpiredToken", "the credentials have expired"),
        (listing, 400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (every_object, 403, "InvalidObjectState", "archived"),
        (every_object, 404, "NoSuchKey", "does not exist"),
    ],
)
def test_a_definite_no_is_said_at_once(
    where: Matches, status: int, code: str, words: str, s3: S3Lab, tiny_model: Path
) -> None:
    s3.upload(tiny_model)
    s3.proxy.fault(where, answer(status, code))
    sentence = s3.refused()
    assert words in sentence
    assert s3.address() in sentence
    assert s3.left_over() == []


@pytest.mark.parametrize(("status", "words"), [(403, "no permission"), (404, "does not exist")])
def test_an_object_that_may_not_be_looked_at(status: int, words: str, s3: S3Lab, tiny_model: Path) -> None:
    """The answer to HEAD has no body to say more."""
    s3.upload(tiny_model)
    s3.proxy.fault(head_of("config.json"), answer(status))
    sentence = s3.refused()
    assert f"{s3.address()}/config.json: " in sentence
    assert words in sentence


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("where", "status", "code", "words"),
    [
        (listing, 500, "InternalError", "(500, InternalError)"),
        (every_object, 503, "SlowDown", "throttling requests (SlowDown)"),
        (WEIGHTS, 500, "InternalError", "(500, InternalError)"),
    ],
)
def test_an_error_that_may_pass_is_given_up_after_a_while(
    status: int, code: str, words: str, where: Matches, s3: S3Lab, small_model: Path
) -> None:
    s3.upload(small_model)
    s3.proxy.fault(where, answer(status, code))
    sentence = s3.refused()
    assert words in sentence
    assert len(s3.proxy.requests) > (1 if where is listing else 2), "it was not tried again"


def test_an_error_that_passes_does_no_harm(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    s3.proxy.fault(everything, answer(500, "InternalError"), times=3)
    s3.proxy.fault(WEIGHTS, answer(503, "SlowDown"), times=6)
    assert same(s3.obtain()[0], small_model)


@pytest.mark.usefixtures("impatient")
def test_nobody_listens(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "S3 at http://127.0.0.1:9 cannot be reached" in s3.refused()


@pytest.mark.usefixtures("impatient")
def test_nobody_answers(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make verify` measures that users wait ten seconds at most."""
    monkeypatch.setattr(remote, "_READ_SECONDS", 0.3)
    s3.proxy.fault(everything, delay=60)
    assert "does not respond in time" in s3.refused()


def test_a_corrupted_byte(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    s3.proxy.fault(WEIGHTS, corrupt(9_999_999))
    sentence = s3.refused()
    assert f"{s3.address()}/model.safetensors: " in sentence
    assert "CRC32 differs" in sentence
    assert s3.left_over() == []
    s3.proxy.heal()
    assert same(s3.obtain()[0], small_model)


@pytest.mark.parametrize("size", [0, 3_000_000])
def test_an_object_shorter_than_listed(size: int, s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    s3.proxy.fault(WEIGHTS, truncate(size))
    assert "model.safetensors: the object is shorter than listed" in s3.refused()
    assert s3.left_over() == []


def test_an_object_that_changes_while_it_is_read(s3: S3Lab, small_model: Path, tmp_path: Path) -> None:
    s3.upload(small_model)
    other = (write_model(tmp_path / "other", 20 << 20, seed=5) / "model.safetensors").read_bytes()
    s3.proxy.when_sent(4 << 20, lambda: s3.put("mine/model.safetensors", other))
    # Reads that began before the change may end well; one that begins after it cannot.
    s3.proxy.cut_at([5 << 20, 6 << 20, 7 << 20])
    sentence = s3.refused()
    assert f"{s3.address()}/model.safetensors: the object changed while it was read" in sentence
    assert s3.left_over() == []


def test_a_server_that_does_not_heed_if_match(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)

    def other_etag(asked: object, given: object) -> object:
        given.headers["ETag"] = '"0123456789abcdef0123456789abcdef"'  # type: ignore[attr-defined]
        return given

    s3.proxy.fault(WEIGHTS, other_etag)  # type: ignore[arg-type]
    assert "the object changed while it was read" in s3.refused()


@pytest.mark.parametrize("name", ["../x.json", "/x.json", "x\x01.json", f"{'x' * 300}.json"])
def test_keys_that_lead_elsewhere_are_refused_by_name(name: str, s3: S3Lab, tiny_model: Path) -> None:
    """The real server takes no such keys; another one may have them."""
    s3.upload(tiny_model)
    s3.put("mine/replaced.json", b"{}")
    s3.proxy.fault(listing, rewrite(b"replaced.json", quote(name).encode()))
    sentence = s3.refused()
    assert "refused" in sentence
    assert not [asked for asked in s3.proxy.requests if asked.key]
    assert not (s3.cache / "models" / "x.json").exists()


@pytest.mark.parametrize("where", [listing, head_of("config.json")])
def test_a_signal_to_stop_ends_a_request(where: Matches, s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    ended = threading.Event()

    def stop(asked: Asked, given: Answer) -> Answer:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        ended.wait()
        return given

    s3.proxy.fault(where, stop, times=1)
    try:
        with StopSignals(), pytest.raises(StopRequested):
            s3.obtain()
    finally:
        ended.set()
