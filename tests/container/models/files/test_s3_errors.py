"""S3 errors: each is one line, in time, and leaves no partial files in the cache."""

from __future__ import annotations

import dataclasses
import io
import signal
import socket
import ssl
import threading
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from botocore import exceptions as aws
from botocore.response import StreamingBody
from urllib3.exceptions import SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from container.models.errors import ModelNotAvailable, RemoteUnreachable
from container.models.files.remote import RemoteFile
from container.models.files.s3 import remote
from container.models.files.s3.address import S3Address
from container.models.files.s3.errors import model_error
from container.models.files.s3.parts import S3Object
from container.models.files.s3.ranges import read_range
from container.run.stop_signals import StopRequested, StopSignals
from tests.container.models.files.s3_lab import S3Lab, same
from tests.support.faulty_proxy import (
    Answer,
    Matches,
    ProxyRequest,
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


def test_a_missing_bucket_is_an_error(s3: S3Lab) -> None:
    message = dataclasses.replace(s3, bucket="nobodys-bucket").refused()
    assert "s3://nobodys-bucket/" in message
    assert "the bucket does not exist" in message


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "somebody"}, "rejected the access key"),
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "does not match the access key"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no usable AWS credentials"),
        ({"AWS_PROFILE": "nobody"}, "no usable AWS credentials"),
        ({"AWS_ENDPOINT_URL": "not an address"}, "check AWS_ENDPOINT_URL"),
        ({"AWS_REGION": "no region!"}, "check AWS_REGION"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "S3 at http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_bad_environment_variables_are_named(
    change: dict[str, str], words: str, s3_tiny: S3Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    message = s3_tiny.refused()
    assert words in message
    assert "another-secret" not in message


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
def test_a_definite_error_is_not_retried(
    where: Matches, status: int, code: str, words: str, s3_tiny: S3Lab
) -> None:
    s3_tiny.proxy.fault(where, answer(status, code))
    message = s3_tiny.refused()
    assert words in message
    assert s3_tiny.address() in message
    assert s3_tiny.leftover_files() == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "config.json: no permission"), (404, "config.json: the object does not exist")],
)
def test_a_failed_head_request_names_the_object(status: int, words: str, s3_tiny: S3Lab) -> None:
    """The response to HEAD has no body with details."""
    s3_tiny.proxy.fault(head_of("config.json"), answer(status))
    assert f"{s3_tiny.address()}/{words}" in s3_tiny.refused()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("where", "status", "code", "words"),
    [
        (listing, 500, "InternalError", "(500, InternalError)"),
        (every_object, 503, "SlowDown", "throttling requests (SlowDown)"),
        (WEIGHTS, 500, "InternalError", "(500, InternalError)"),
    ],
)
def test_a_transient_error_is_retried_and_then_reported(
    status: int, code: str, words: str, where: Matches, s3_small: S3Lab
) -> None:
    s3_small.proxy.fault(where, answer(status, code))
    message = s3_small.refused()
    assert words in message
    assert len(s3_small.proxy.requests) > (1 if where is listing else 2), "it was not retried"


def test_the_fetch_recovers_from_transient_errors(s3_small: S3Lab, small_model: Path) -> None:
    s3_small.proxy.fault(everything, answer(500, "InternalError"), times=3)
    s3_small.proxy.fault(WEIGHTS, answer(503, "SlowDown"), times=6)
    assert same(s3_small.obtain()[0], small_model)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_does_not_respond_is_an_error(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make verify` checks that users wait at most ten seconds."""
    monkeypatch.setattr(remote, "_READ_SECONDS", 0.3)
    s3.proxy.fault(everything, delay=60)
    assert "does not respond in time" in s3.refused()


@pytest.mark.usefixtures("impatient")
def test_a_dropped_tls_connection_is_a_temporary_error(s3: S3Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = []

    def close_all(listener: socket.socket) -> None:
        while len(connections) < 3:
            connection, address = listener.accept()
            connection.recv(1 << 16)  # the ClientHello
            connections.append(address)
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        threading.Thread(target=close_all, args=(listener,), daemon=True).start()
        with pytest.raises(RemoteUnreachable, match=f"the TLS connection to S3 at {url} failed repeatedly"):
            s3.obtain()
    assert len(connections) == 3


@pytest.mark.parametrize(
    "cause",
    [
        ssl.SSLCertVerificationError("self-signed certificate"),
        CertificateError("hostname 'x' does not match"),
    ],
)
def test_an_untrusted_certificate_is_a_permanent_error(cause: Exception) -> None:
    error = aws.SSLError(endpoint_url="https://x", error=cause)
    error.__context__ = SSLError(cause)
    error.__context__.__context__ = cause
    failure = model_error(error, "s3://b/")
    assert not isinstance(failure, RemoteUnreachable)
    assert "the TLS certificate of S3 is not trusted" in str(failure)


def test_a_tls_error_inside_a_body_is_retried() -> None:
    content = b"0123456789"
    ranges: list[str] = []

    class BrokenBody(io.BytesIO):
        def readinto(self, out: object) -> int:
            raise SSLError("EOF occurred in violation of protocol")

    def get_object(Range: str, **_: str) -> dict[str, object]:  # noqa: N803
        ranges.append(Range)
        raw = io.BytesIO(content) if len(ranges) > 1 else BrokenBody()
        size = len(content)
        headers = {"ETag": "v1", "ContentRange": f"bytes 0-{size - 1}/{size}", "ContentLength": size}
        return {**headers, "Body": StreamingBody(raw, size)}

    out = bytearray(len(content))
    source = S3Object(SimpleNamespace(get_object=get_object), "b", "x", RemoteFile("x", len(content), "v1"))
    read_range(source, 0, memoryview(out))
    assert (bytes(out), ranges) == (content, ["bytes=0-9", "bytes=0-9"])


def test_a_corrupted_byte_is_detected(s3_small: S3Lab, small_model: Path) -> None:
    s3_small.proxy.fault(WEIGHTS, corrupt(9_999_999))
    message = s3_small.refused()
    assert f"{s3_small.address()}/model.safetensors: " in message
    assert "CRC32 differs" in message
    assert s3_small.leftover_files() == []
    s3_small.proxy.heal()
    assert same(s3_small.obtain()[0], small_model)


@pytest.mark.parametrize("size", [0, 3_000_000])
def test_an_object_shorter_than_listed_is_an_error(size: int, s3_small: S3Lab) -> None:
    s3_small.proxy.fault(WEIGHTS, truncate(size))
    assert "model.safetensors: the object is shorter than listed" in s3_small.refused()
    assert s3_small.leftover_files() == []


def test_an_object_that_changes_while_it_is_read_is_an_error(
    s3: S3Lab, small_model: Path, tmp_path: Path
) -> None:
    s3.upload(small_model)
    other = (write_model(tmp_path / "other", 20 << 20, seed=5) / "model.safetensors").read_bytes()
    s3.proxy.when_sent(4 << 20, lambda: s3.put("mine/model.safetensors", other))
    # Reads that began before the change may succeed. Reads that begin after it cannot.
    s3.proxy.cut_at([5 << 20, 6 << 20, 7 << 20])
    message = s3.refused()
    assert f"{s3.address()}/model.safetensors: the object changed while it was read" in message
    assert s3.leftover_files() == []


def test_a_server_that_ignores_if_match_is_detected(s3_small: S3Lab) -> None:
    def other_etag(asked: ProxyRequest, response: Answer) -> Answer:
        response.headers["ETag"] = '"0123456789abcdef0123456789abcdef"'
        return response

    s3_small.proxy.fault(WEIGHTS, other_etag)
    assert "the object changed while it was read" in s3_small.refused()


def list_pages(num_pages: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List a model in pages of one object each. Return the paths."""

    def list_objects_v2(ContinuationToken: str = "0", **_: str) -> dict[str, object]:  # noqa: N803
        entry = {"Key": f"m/{ContinuationToken}", "Size": 1, "ETag": "v"}
        following = int(ContinuationToken) + 1
        if following == num_pages:
            return {"Contents": [entry], "IsTruncated": False}
        return {"Contents": [entry], "IsTruncated": True, "NextContinuationToken": str(following)}

    client = SimpleNamespace(list_objects_v2=list_objects_v2)
    monkeypatch.setattr(remote, "connect", lambda environ: client)
    return [file.path for file in remote.S3Remote(S3Address("b", "m/"), {}).list_files()]


def test_all_pages_of_a_listing_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_pages(10, monkeypatch) == list("0123456789")
    with pytest.raises(ModelNotAvailable, match="more than 10000 objects, too many for one model"):
        list_pages(11, monkeypatch)


@pytest.mark.parametrize("name", ["../x.json", "/x.json", "x\x01.json"])
def test_unsafe_keys_are_rejected(name: str, s3: S3Lab, tiny_model: Path) -> None:
    """The real server rejects such keys, but another one may accept them."""
    s3.upload(tiny_model)
    s3.put("mine/replaced.json", b"{}")
    s3.proxy.fault(listing, rewrite(b"replaced.json", quote(name).encode()))
    message = s3.refused()
    assert "file name not allowed" in message
    assert not [asked for asked in s3.proxy.requests if asked.key]
    assert not (s3.cache / "models" / "x.json").exists()


@pytest.mark.parametrize("where", [listing, head_of("config.json")])
def test_a_stop_signal_interrupts_a_request(where: Matches, s3_tiny: S3Lab) -> None:
    ended = threading.Event()

    def stop(asked: ProxyRequest, response: Answer) -> Answer:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        ended.wait()
        return response

    s3_tiny.proxy.fault(where, stop, times=1)
    try:
        with StopSignals(), pytest.raises(StopRequested):
            s3_tiny.obtain()
    finally:
        ended.set()
