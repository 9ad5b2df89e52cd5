"""The whole server with its model in S3: a tiny one. `make verify` has the bundled one there."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.support.faulty_proxy import faulty_proxy
from tests.support.model_files import content, prepare
from tests.support.seaweed import Seaweed, credentials
from tests.support.server import Server, properties_text

pytestmark = pytest.mark.e2e


def test_a_model_in_s3_is_served_and_prepared_again_without_fetching(
    seaweed: Seaweed, tiny_model: Path, tmp_path: Path
) -> None:
    seaweed.upload(tiny_model, "served", "tiny/")
    text = properties_text("s3://served/tiny/")
    body = {"inputs": "the quick brown fox", "parameters": {"max_new_tokens": 12}}
    size = sum(path.stat().st_size for path in tiny_model.iterdir())
    with faulty_proxy(seaweed.url) as proxy:
        environment = {**credentials(proxy.url), "LMI_CACHE_DIR": str(tmp_path / "cache")}
        with Server(tmp_path / "server", text, environment=environment) as server:
            server.wait_ready()
            reply = server.client.post("/invocations", body)
            assert reply.status == 200
            assert reply.json()["generated_text"]
            (listed,) = (tmp_path / "cache" / "models" / ".remote").glob("*-????????????????.json")
            with listed.open("r+b") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so that nobody prunes it
        assert proxy.object_bytes == size
        again = prepare("s3://served/tiny/", tmp_path / "cache", "", **credentials(proxy.url))
        assert again.returncode == 0, again.stderr
        assert proxy.object_bytes == size
    assert content(Path(again.stdout.splitlines()[-1])) == content(tiny_model)
