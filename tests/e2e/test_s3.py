"""The whole server with its model in S3: a tiny one. `make verify` has the bundled one there."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faulty_proxy import answer, faulty_proxy, listing
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.seaweed import Seaweed, credentials
from tests.support.server import Server, properties_text

pytestmark = pytest.mark.e2e


def test_a_model_in_s3_is_served_and_served_again_without_fetching(
    seaweed: Seaweed, tiny_model: Path, tmp_path: Path
) -> None:
    seaweed.upload(tiny_model, "served", "tiny/")
    text = properties_text("s3://served/tiny/")
    body = {"inputs": "the quick brown fox", "parameters": {"max_new_tokens": 12}}
    with faulty_proxy(seaweed.url) as proxy:
        environment = {**credentials(proxy.url), "LMI_CACHE_DIR": str(tmp_path / "cache")}
        fetched, answers = [], []
        for name in ("first", "again"):
            proxy.heal()
            with Server(tmp_path / name, text, environment=environment) as server:
                server.wait_ready()
                reply = server.client.post("/invocations", body)
                assert reply.status == 200
                answers.append(reply.json()["generated_text"])
                (listed,) = (tmp_path / "cache" / "models" / ".remote").glob("*-????????????????.json")
                with listed.open("r+b") as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so that nobody prunes it
            fetched.append(proxy.object_bytes)
    assert fetched == [sum(path.stat().st_size for path in tiny_model.iterdir()), 0]
    assert answers[0] == answers[1] != ""


def test_a_forbidden_model_ends_the_start_with_one_sentence(seaweed: Seaweed, tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(properties_text("s3://served/tiny/"))
    with faulty_proxy(seaweed.url) as proxy:
        proxy.fault(listing, answer(403, "AccessDenied"))
        done = subprocess.run(
            [sys.executable, "-m", "container", "serve", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            cwd=REPO_ROOT,
            env=child_environment({**credentials(proxy.url), "LMI_CACHE_DIR": str(tmp_path / "cache")}),
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: s3://served/tiny/: no permission (403, AccessDenied)")
    assert done.stderr.count("\n") == 1
