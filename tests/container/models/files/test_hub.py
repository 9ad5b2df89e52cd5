"""Models fetched from a local hub with the real huggingface_hub."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
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


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


Obtain = Callable[..., Path]


@pytest.fixture
def obtain(hub: HubServer, tmp_path: Path, log: io.StringIO) -> Obtain:
    """Obtain a model into the cache of the test."""

    def run(model_id: str = ID, revision: str | None = None, with_code: bool = False) -> Path:
        source = ModelSource(model_id, str(tmp_path), revision, with_code)
        return model_files.obtain(source, LogLines(log), tmp_path / "cache")

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the retry limit to three failures in a row."""
    monkeypatch.setattr(retry, "_MAX_FAILURES", 3)


def complete_models(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").glob("*") if not path.name.startswith(".")]


def test_only_the_files_needed_for_serving_are_fetched(
    hub: HubServer, obtain: Obtain, tmp_path: Path
) -> None:
    files = model()
    others = {"README.md": b"read", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"o"}
    hub.commit(ID, {**files, **others})
    folder = obtain()
    assert content(folder) == files
    assert model_files.locate(ModelSource(ID), tmp_path / "cache") == folder
    assert complete_models(tmp_path / "cache") == [folder]


def test_remote_code_needs_no_other_copy_of_the_model(hub: HubServer, obtain: Obtain) -> None:
    commit = hub.commit(ID, model(**{"code.py": b"pass"}))
    folder = obtain(revision=commit)
    bytes_before = hub.body_bytes
    assert obtain(revision=commit, with_code=True) == folder
    assert hub.body_bytes == bytes_before
    assert (folder / "code.py").read_bytes() == b"pass"


@pytest.mark.parametrize("revision", ["side", "refs/pr/1", "v1.0", "the commit", None])
def test_a_revision_can_be_a_branch_a_tag_or_a_commit(
    revision: str | None, hub: HubServer, obtain: Obtain
) -> None:
    branch = "side" if revision == "the commit" else revision or "main"
    for other in {"main", "side", "refs/pr/1"} - {branch}:
        hub.commit(ID, model(seed=1), branch=other)
    commit = hub.commit(ID, model(seed=2), branch=branch if branch != "v1.0" else "old", tag="v1.0")
    assert content(obtain(revision=commit if revision == "the commit" else revision)) == model(seed=2)


def test_a_branch_is_fetched_again_only_if_it_moved(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model(seed=1))
    first = obtain()
    fetched = hub.body_bytes
    assert obtain() == first
    assert hub.body_bytes == fetched
    hub.commit(ID, model(seed=2))
    second = obtain()
    assert content(first) == model(seed=1)
    assert content(second) == model(seed=2)


def test_a_branch_that_moves_during_a_fetch_does_not_mix_versions(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model(seed=1))
    hub.break_next(Fault("config.json", before=lambda: hub.commit(ID, model(seed=2))))
    assert content(obtain()) == model(seed=1)
    assert content(obtain()) == model(seed=2)


def test_a_cached_commit_needs_no_connection(hub: HubServer, obtain: Obtain) -> None:
    commit = hub.commit(ID, model())
    folder = obtain(revision=commit)
    num_requests = len(hub.seen)
    hub.close()
    assert obtain(revision=commit) == folder
    assert len(hub.seen) == num_requests


def test_an_interrupted_file_is_resumed(hub: HubServer, obtain: Obtain) -> None:
    files = model(size_bytes=4 << 20)
    hub.commit(ID, files)
    draw = random.Random(0)
    for _ in range(20):
        hub.break_next(Fault(STORE, cut_after=draw.randrange(200_000)))
    assert content(obtain()) == files
    assert len(hub.paths(STORE)) == 21
    assert hub.body_bytes <= 1.01 * sum(map(len, files.values()))


def test_a_host_without_range_support_is_read_from_the_beginning(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, cut_after=300_000))
    hub.break_next(Fault(STORE, ignore_range=True))
    assert content(obtain()) == model()


def test_a_stalled_connection_is_replaced(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SILENCE_SECONDS", 3.0)
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, stall_after=300_000))
    assert content(obtain()) == model()
    assert hub.body_bytes <= 1.2 * sum(map(len, model().values()))


@pytest.mark.parametrize("where", ["/api/models/", "/resolve/", STORE])
def test_transient_errors_are_retried(where: str, hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(where, times=2, status=503))
    assert content(obtain()) == model()


@pytest.mark.usefixtures("impatient")
def test_damage_from_an_interrupted_fetch_is_repaired(
    hub: HubServer, obtain: Obtain, log: io.StringIO
) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, corrupt=True, cut_after=300_000))
    hub.break_next(Fault(STORE, times=50, status=503))
    with pytest.raises(ModelNotAvailable, match="503"):
        obtain()
    hub.faults.clear()
    assert content(obtain()) == model()
    assert "resuming an interrupted fetch" in log.getvalue()


def test_a_fetch_that_is_refused_halfway_resumes(hub: HubServer, obtain: Obtain, log: io.StringIO) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, cut_after=300_000))
    hub.break_next(Fault(STORE, status=403))
    with pytest.raises(ModelNotAvailable, match="denied access"):
        obtain()
    assert content(obtain()) == model()
    assert "resuming an interrupted fetch" in log.getvalue()
    assert hub.body_bytes <= 1.2 * sum(map(len, model().values()))


def test_the_token_is_sent_to_the_hub_but_not_to_its_storage_host(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    hub.commit(ID, model())
    hub.repositories[ID].private = True
    with pytest.raises(ModelNotAvailable, match="private and a client without HF_TOKEN"):
        obtain()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert content(obtain()) == model()
    stored = [seen for seen in hub.seen if STORE in seen.path]
    assert stored
    assert not any("authorization" in seen.headers for seen in stored)


def _gated(hub: HubServer) -> None:
    hub.repositories[ID].gated = True


def _private(hub: HubServer) -> None:
    hub.repositories[ID].private = True


def _with_fault(fault: Fault) -> Callable[[HubServer], None]:
    return lambda hub: hub.break_next(fault)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (lambda hub: hub.repositories.clear(), ["no model 'owner/tiny'", "the folder", "either"]),
        (_private, ["no model 'owner/tiny', or it is private"]),
        (_gated, ["owner/tiny is gated", "request access at", "set HF_TOKEN"]),
        (_with_fault(Fault("/api/", status=403)), ["denied access to a client without HF_TOKEN (403)"]),
        (_with_fault(Fault("config.json", status=404)), ["config.json: the hub lists this file but"]),
        (_with_fault(Fault("/api/", status=418)), ["status 418"]),
        (
            _with_fault(Fault("/api/", times=9, status=429, headers={"Retry-After": "77"})),
            ["429", "retry after 77 s"],
        ),
        (_with_fault(Fault("/api/", times=9, status=500)), ["status 500"]),
        (_with_fault(Fault("/api/", body=b"<html>")), ["did not respond like a model hub"]),
        (_with_fault(Fault("/api/", body=b'["a"]')), ["did not respond like a model hub"]),
        (_with_fault(Fault("/api/", body=b'{"id": "owner/tiny"}')), ["did not respond like a model hub"]),
        (
            _with_fault(Fault("/api/", body=b'{"id": "a", "siblings": [{}], "sha": "1"}')),
            ["did not respond like"],
        ),
        (_with_fault(Fault(STORE, corrupt=True)), ["model.safetensors is damaged", "sha256"]),
        (_with_fault(Fault("resolve", corrupt=True)), ["config.json is damaged", "git blob id"]),
        (_with_fault(Fault(STORE, body=b"short")), ["model.safetensors has 5 bytes"]),
        (_with_fault(Fault("resolve", times=99, cut_after=0)), ["config.json: lost the connection to"]),
    ],
)
def test_a_failed_fetch_is_a_one_line_error_and_publishes_nothing(
    fail: Callable[[HubServer], None], words: list[str], hub: HubServer, obtain: Obtain, tmp_path: Path
) -> None:
    hub.commit(ID, model())
    fail(hub)
    with pytest.raises(ModelNotAvailable) as caught:
        obtain()
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text
    assert complete_models(tmp_path / "cache") == []


def test_an_unknown_revision_is_named(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    with pytest.raises(ModelNotAvailable, match=r"has no revision 'v9'; .* existing branch, tag or commit"):
        obtain(revision="v9")


def test_a_rejected_token_is_reported_but_not_shown(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    hub.token = "hf_right"
    hub.commit(ID, model())
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelNotAvailable, match="rejected the token") as caught:
        obtain()
    assert "hf_wrong" not in str(caught.value) + log.getvalue()


def test_a_gated_model_reports_that_the_token_has_no_access(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(ID, model())
    hub.repositories[ID].gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    with pytest.raises(ModelNotAvailable, match="gated, and the account of HF_TOKEN has no access"):
        obtain()


@pytest.mark.usefixtures("impatient")
def test_a_storage_host_that_is_down_is_named(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    hub.close_store()
    with pytest.raises(ModelNotAvailable, match=f"model.safetensors: cannot connect to {hub.store_url}"):
        obtain()


def test_another_revision_of_the_bundled_model_comes_from_the_hub(
    hub: HubServer, obtain: Obtain, log: io.StringIO
) -> None:
    bundled = "HuggingFaceTB/SmolLM2-135M-Instruct"
    hub.commit(bundled, model(), branch="other")
    assert content(obtain(bundled, "other")) == model()
    assert "the bundled model has no other revisions" in log.getvalue()
