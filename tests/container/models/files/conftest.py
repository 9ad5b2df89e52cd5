"""Fixtures: a local hub, and a prefix of a bucket for each test behind a proxy that injects faults."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import huggingface_hub
import pytest

from container.models.files import fetch, retry
from container.models.files.hub import remote as hub_remote
from container.models.files.s3 import remote
from container.progress import LogLines
from tests.container.models.files.s3_lab import BUCKET, S3Lab
from tests.container.models.files.scripted_remote import Obtain, Obtained, ScriptedRemote
from tests.support.faulty_proxy import faulty_proxy
from tests.support.hub_server import HubServer
from tests.support.model_files import NO_PROXY
from tests.support.model_folders import write_model
from tests.support.seaweed import Seaweed, credentials

MODEL_BYTES = 20 << 20
"""Size of the small model: three parts of an object, so that reads are parallel."""
_one_loader = functools.cache(botocore.session.create_loader)
"""Reads botocore's descriptions of services once, not for every client."""


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small"), MODEL_BYTES)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in two shards with an index."""
    return write_model(tmp_path_factory.mktemp("tiny"), 200_000, shards=2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def obtain(cache: Path) -> Obtain:
    def run(remote: ScriptedRemote) -> Obtained:
        log = io.StringIO()
        return Obtained(fetch.obtain(remote, cache, LogLines(log)), log.getvalue())

    return run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        for name, value in {**NO_PROXY, "HF_ENDPOINT": server.url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # A busy machine may pause a server for seconds.
        monkeypatch.setattr(retry, "SILENCE_SECONDS", 60.0)
        monkeypatch.setattr(retry, "_FIRST_DELAY_SECONDS", 0.01)
        monkeypatch.setattr(hub_remote, "_SILENCE_SECONDS", 30.0)
        monkeypatch.setattr(hub_remote, "_ANSWER_SECONDS", 60.0)
        monkeypatch.setattr(hub_remote, "_WAITS", (0.01, 0.01))
        yield server
    huggingface_hub.close_session()


@pytest.fixture
def s3(seaweed: Seaweed, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Lab]:
    """An empty prefix, an empty cache, and environment variables that point to them."""
    seaweed.make_bucket(BUCKET)
    with faulty_proxy(seaweed.url) as proxy:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.delenv(name, raising=False)
        for name, value in credentials(proxy.url).items():
            monkeypatch.setenv(name, value)
        # A busy machine may pause a server for seconds.
        monkeypatch.setattr(botocore.session, "create_loader", _one_loader)
        monkeypatch.setattr(retry, "SILENCE_SECONDS", 60.0)
        monkeypatch.setattr(retry, "_FIRST_DELAY_SECONDS", 0.01)
        monkeypatch.setattr(remote, "_READ_SECONDS", 30.0)
        yield S3Lab(seaweed, proxy, f"{tmp_path.name}/", cache)


@pytest.fixture(scope="session")
def stored(seaweed: Seaweed, small_model: Path, tiny_model: Path) -> None:
    """Upload each model once for all tests that do not change it."""
    seaweed.upload(small_model, BUCKET, "small/mine/")
    seaweed.upload(tiny_model, BUCKET, "tiny/mine/")


@pytest.fixture
def s3_small(s3: S3Lab, stored: None) -> S3Lab:
    """`s3` with the small model as `mine`, which tests must not change."""
    return dataclasses.replace(s3, root="small/")


@pytest.fixture
def s3_tiny(s3: S3Lab, stored: None) -> S3Lab:
    """`s3` with the tiny model as `mine`, which tests must not change."""
    return dataclasses.replace(s3, root="tiny/")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the retry limit to three failures in a row."""
    monkeypatch.setattr(retry, "_MAX_FAILURES", 3)
