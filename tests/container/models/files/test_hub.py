"""Models fetched from a local hub with the real huggingface_hub, in this process and in others."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.hub import remote
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.hub_server import Fault, HubServer
from tests.support.model_files import content, model, prepare, start_prepare
from tests.support.waiting import wait_until

ID = "owner/tiny"
STORE = "model.safetensors/"
"""Part of a path that only occurs on the storage host."""
NOWHERE = "http://no-such-host.invalid"


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


Obtain = Callable[..., Path]


@pytest.fixture
def obtain(hub: HubServer, tmp_path: Path, cache: Path, log: io.StringIO) -> Obtain:
    """Obtain a model into the cache of the test."""

    def run(model_id: str = ID, revision: str | None = None, with_code: bool = False) -> Path:
        source = ModelSource(model_id, str(tmp_path), revision, with_code)
        return model_files.obtain(source, LogLines(log), cache)

    return run


def complete_models(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").glob("*") if not path.name.startswith(".")]


def test_only_the_files_needed_for_serving_are_fetched(hub: HubServer, obtain: Obtain, cache: Path) -> None:
    files = model()
    others = {"README.md": b"read", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"o"}
    hub.commit(ID, {**files, **others})
    folder = obtain()
    assert content(folder) == files
    assert model_files.locate(ModelSource(ID), cache) == folder
    assert complete_models(cache) == [folder]


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


def test_a_cached_commit_needs_no_connection_nor_another_copy_with_remote_code(
    hub: HubServer, obtain: Obtain
) -> None:
    files = model(**{"code.py": b"pass"})
    commit = hub.commit(ID, files)
    folder = obtain(revision=commit)
    assert content(folder) == files
    num_requests = len(hub.seen)
    hub.close()
    for with_code in (False, True):
        assert obtain(revision=commit, with_code=with_code) == folder
    assert len(hub.seen) == num_requests


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (NOWHERE, f"cannot resolve the host name of {NOWHERE}; "),
        ("http://127.0.0.1:1", "cannot connect to http://127.0.0.1:1 "),
        ("", "did not respond in time; "),
    ],
)
def test_without_a_hub_the_cached_copy_is_used_with_a_note(
    endpoint: str,
    words: str,
    hub: HubServer,
    obtain: Obtain,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.commit(ID, model())
    folder = obtain()
    monkeypatch.setenv("HF_ENDPOINT", endpoint or hub.url)
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 1.0 if endpoint == "" else 60.0)
    hub.break_next(Fault("/api/", times=9, before=lambda: hub.closing.wait(30)))
    assert obtain() == folder
    *_, note = log.getvalue().splitlines()
    assert words in note
    assert note.endswith(f"; using the cached copy of {ID}@main in {folder}")


def test_an_endpoint_that_is_not_an_address_is_named(obtain: Obtain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:x")
    with pytest.raises(ModelNotAvailable, match=r"HF_ENDPOINT=http://127\.0\.0\.1:x is not an address"):
        obtain()


@pytest.mark.parametrize("status", [403, 404, 418, 500])
def test_a_password_in_the_endpoint_is_used_but_never_shown(
    status: int, hub: HubServer, obtain: Obtain, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(ID, model())
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://user:secret@"))
    hub.break_next(Fault("/api/", times=99, status=status))
    with pytest.raises(ModelNotAvailable) as caught:
        obtain()
    assert hub.url in str(caught.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:x")
    with pytest.raises(ModelNotAvailable, match=r"HF_ENDPOINT=http://127\.0\.0\.1:x is not") as other:
        obtain()
    assert "secret" not in f"{caught.value}{other.value}{log.getvalue()}"


def test_an_interrupted_file_is_resumed(hub: HubServer, obtain: Obtain) -> None:
    files = model()
    hub.commit(ID, files)
    draw = random.Random(0)
    for _ in range(5):
        hub.break_next(Fault(STORE, cut_after=draw.randrange(200_000)))
    assert content(obtain()) == files
    assert len(hub.paths(STORE)) == 6
    assert hub.body_bytes <= 1.01 * sum(map(len, files.values()))


def test_a_host_without_range_support_is_read_from_the_beginning(hub: HubServer, obtain: Obtain) -> None:
    hub.commit(ID, model())
    hub.break_next(Fault(STORE, cut_after=300_000))
    hub.break_next(Fault(STORE, ignore_range=True))
    assert content(obtain()) == model()


def test_a_stalled_connection_is_replaced(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SILENCE_SECONDS", 1.0)
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
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert content(obtain()) == model()
    stored = [seen for seen in hub.seen if STORE in seen.path]
    assert stored
    assert not any("authorization" in seen.headers for seen in stored)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("/api/", status=403), "denied access to a client without HF_TOKEN (403)"),
        (Fault("config.json", status=404), "config.json: the Hub lists this file but"),
        (Fault("/api/", status=418), "status 418"),
        (Fault("/api/", times=9, status=429, headers={"Retry-After": "77"}), "429); retry after 77 s"),
        (Fault("/api/", times=9, status=500), "status 500"),
        (Fault("/api/", body=b"<html>"), "did not respond like a model hub"),
        (Fault("/api/", body=b'["a"]'), "did not respond like a model hub"),
        (Fault("/api/", body=b'{"id": "owner/tiny"}'), "did not respond like a model hub"),
        (Fault("/api/", body=b'{"id": "a", "siblings": [{}], "sha": "1"}'), "did not respond like"),
        (Fault(STORE, corrupt=True), "model.safetensors is damaged: sha256 is"),
        (Fault("resolve", corrupt=True), "config.json is damaged: git blob id is"),
        (Fault(STORE, body=b"short"), "model.safetensors has 5 bytes"),
        (Fault("resolve", times=99, cut_after=0), "config.json: lost the connection to"),
    ],
)
def test_a_failed_fetch_is_a_one_line_error_and_publishes_nothing(
    fault: Fault, words: str, hub: HubServer, obtain: Obtain, cache: Path
) -> None:
    hub.commit(ID, model())
    hub.break_next(fault)
    with pytest.raises(ModelNotAvailable) as caught:
        obtain()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert complete_models(cache) == []


@pytest.mark.parametrize(
    ("state", "token", "words"),
    [
        ("missing", "", r"no model 'owner/tiny', or it is private and a client .*; the folder .* either"),
        (
            "private",
            "",
            "a client without HF_TOKEN has no access.*; check the spelling, or set HF_TOKEN to a",
        ),
        (
            "missing",
            "hf_any",
            "private and the account of HF_TOKEN has no .*, or use the token of an account with",
        ),
        ("gated", "", "is gated, and a client without HF_TOKEN .*; request access at .*, then set HF_TOKEN$"),
        (
            "gated",
            "hf_any",
            "account of HF_TOKEN has no access; request access at .* with that account, then",
        ),
    ],
)
def test_a_model_without_access_is_reported(
    state: str, token: str, words: str, hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state != "missing":
        hub.commit(ID, model())
        setattr(hub.repositories[ID], state, True)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ModelNotAvailable, match=words) as caught:
        obtain()
    assert "\n" not in str(caught.value)


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


@pytest.fixture
def files(hub: HubServer) -> dict[str, bytes]:
    """The files of the model in the hub."""
    files = model(size_bytes=4 << 20)
    hub.commit(ID, files)
    return files


def test_concurrent_processes_download_once_and_write_only_into_the_cache(
    hub: HubServer, files: dict[str, bytes], cache: Path
) -> None:
    # The first one downloads the weights when the second one has the listing.
    hub.break_next(Fault(STORE, before=lambda: wait_until(lambda: len(hub.paths("/api/")) == 2)))
    running = [start_prepare(ID, cache, hub.url, patient=True) for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    (out,) = {out for out, _ in outputs}
    assert content(Path(out.splitlines()[-1])) == files
    assert hub.body_bytes == sum(map(len, files.values()))
    assert [path.name for path in cache.parent.iterdir()] == ["cache"]
    assert [path for path in hub.paths() if ID not in path] == []
    assert not any("torch" in seen.headers["user-agent"] for seen in hub.seen)

    offline = prepare(ID, cache, NOWHERE, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, out)
    assert "(HF_HUB_OFFLINE is set); using the cached copy" in offline.stderr


def test_a_killed_fetch_is_never_served_and_the_next_one_resumes(
    hub: HubServer, files: dict[str, bytes], obtain: Obtain, cache: Path
) -> None:
    hub.break_next(Fault(STORE, stall_after=3 << 20))
    process = start_prepare(ID, cache, hub.url, patient=True)

    def written() -> int:
        return max((path.stat().st_size for path in cache.rglob("*.safetensors")), default=0)

    wait_until(lambda: written() >= 2.9 * (1 << 20))
    process.kill()
    process.communicate()
    assert complete_models(cache) == []
    assert content(obtain()) == files
    assert hub.body_bytes < 1.1 * (4 << 20)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_HUB_ETAG_TIMEOUT": "soon"}, "HF_HUB_ETAG_TIMEOUT: not a whole number of seconds (got 'soon')"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "-1"}, "HF_HUB_DOWNLOAD_TIMEOUT: not a whole number of seconds"),
        ({"HF_HUB_ETAG_TIMEOUT": ""}, "HF_... environment variable has an invalid value"),
    ],
    ids=["offline", "no number", "negative", "empty"],
)
def test_without_a_copy_the_error_is_one_line(environment: dict[str, str], words: str, cache: Path) -> None:
    result = prepare(ID, cache, NOWHERE, **environment)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_wrong_settings_of_the_connection_are_named(
    hub: HubServer, obtain: Obtain, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(ID, model())

    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/corp/ca.pem")

    monkeypatch.setattr(remote.HfApi, "model_info", fail)
    with pytest.raises(ModelNotAvailable, match=r"/corp/ca\.pem.*; check SSL_CERT_FILE"):
        obtain()
