"""Mirrors of the hub that leave out what huggingface_hub does not need."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.hub import remote
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.hub_server import Fault, HubServer
from tests.support.model_files import content, model

ID = "owner/tiny"
STORE = "model.safetensors/"
"""Part of a path that only occurs on the storage host."""
Obtain = Callable[..., Path]


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def obtain(hub: HubServer, cache: Path, log: io.StringIO) -> Obtain:
    def run(model_id: str = ID, load_format: str = "auto") -> Path:
        source = ModelSource(model_id, load_format=load_format)
        return model_files.obtain(source, LogLines(log), cache)

    return run


def heads(hub: HubServer) -> set[str]:
    """The files whose headers were requested."""
    return {seen.path.rpartition("/")[2] for seen in hub.seen if seen.method == "HEAD"}


def test_sizes_that_are_not_listed_are_requested_for_the_needed_files(
    hub: HubServer, obtain: Obtain, log: io.StringIO
) -> None:
    files = model()
    others = {"README.md": b"read", "pytorch_model.bin": b"pickle", "onnx/config.json": b"{}"}
    hub.commit(ID, {**files, **others})
    hub.lists_sizes = False
    folder = obtain()
    assert content(folder) == files
    assert heads(hub) == set(files)
    assert "config.json, ...): verified by git blob id" in log.getvalue()
    assert "model.safetensors: verified by sha256" in log.getvalue()
    num_fetched = hub.body_bytes
    assert obtain() == folder
    assert hub.body_bytes == num_fetched


def test_a_change_is_noticed_without_listed_sizes(hub: HubServer, obtain: Obtain) -> None:
    hub.lists_sizes = False
    for seed in (1, 2):
        hub.commit(ID, model(seed))
        assert content(obtain()) == model(seed)


def test_only_the_size_of_the_selected_gguf_file_is_requested(hub: HubServer, obtain: Obtain) -> None:
    hub.lists_sizes = False
    hub.commit(ID, {"x-Q4_0.gguf": b"4", "x-Q8_0.gguf": b"8", "config.json": b"{}", "deep/x-Q2_K.gguf": b"2"})
    with pytest.raises(ModelNotAvailable, match="is not a complete GGUF file"):
        obtain(f"{ID}:Q4_0")
    assert heads(hub) == {"x-Q4_0.gguf", "config.json"}


def test_for_random_weights_no_size_of_weights_is_requested(hub: HubServer, obtain: Obtain) -> None:
    hub.lists_sizes = False
    hub.commit(ID, model())
    assert "model.safetensors" not in content(obtain(load_format="dummy"))
    assert "model.safetensors" not in heads(hub)


@pytest.mark.parametrize(
    ("etag", "words"),
    [
        (hashlib.sha1(b"{}", usedforsecurity=False).hexdigest(), "tokenizer.json: verified by sha1"),
        ("W/some-etag", "tokenizer.json: NOT VERIFIED: the Hub provides no checksum, only the size"),
    ],
)
def test_an_etag_that_is_not_a_git_id_is_accepted(
    etag: str, words: str, hub: HubServer, obtain: Obtain, log: io.StringIO
) -> None:
    hub.lists_sizes = False
    hub.commit(ID, model())
    hub.break_next(Fault("/tokenizer.json", times=9, instead={"ETag": f'"{etag}"'}))
    assert content(obtain()) == model()
    assert words in log.getvalue()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            Fault("/resolve/", times=99, without=("Content-Length",)),
            "neither the listing nor the headers have",
        ),
        (Fault("config.json", status=404), "config.json: the Hub lists this file but does not have it"),
        (Fault("config.json", times=99, status=403), "config.json: .* denied access"),
        (Fault("config.json", times=99, status=500), "config.json: .* keeps returning status 500"),
        (Fault("config.json", times=99, status=302, headers={"Location": "http://[x"}), "like a model hub"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_size_that_stays_unknown_is_an_error(
    fault: Fault, words: str, hub: HubServer, obtain: Obtain, cache: Path
) -> None:
    hub.lists_sizes = False
    hub.commit(ID, model())
    hub.break_next(fault)
    with pytest.raises(ModelNotAvailable, match=words) as caught:
        obtain()
    assert "\n" not in str(caught.value)
    assert not (cache / "models").exists()


def test_requests_for_sizes_are_retried(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SILENCE_SECONDS", 1.0)
    hub.lists_sizes = False
    hub.commit(ID, model())
    hub.break_next(Fault("/resolve/", times=3, status=503))
    hub.break_next(Fault("/tokenizer.json", before=lambda: hub.closing.wait(5)))
    assert content(obtain()) == model()


def test_a_range_without_its_place_is_fetched_again_from_the_beginning(
    hub: HubServer, obtain: Obtain
) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, cut_after=300_000))
    hub.break_next(Fault(STORE, times=99, without=("Content-Range",)))
    assert content(obtain()) == model()
    ranges = [seen.headers.get("range") for seen in hub.seen if STORE in seen.path]
    assert ranges == [None, "bytes=300000-", None]


def test_no_further_range_is_requested_then(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, cut_after=300_000))
    hub.break_next(Fault(STORE, without=("Content-Range",)))
    hub.break_next(Fault(STORE, cut_after=200_000))
    assert content(obtain()) == model()
    ranges = [seen.headers.get("range") for seen in hub.seen if STORE in seen.path]
    assert ranges == [None, "bytes=300000-", None, None]
