"""The whole server with a tiny model in S3. `make verify` does the same with the bundled model."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from tests.support.faulty_proxy import answer, faulty_proxy, object_named
from tests.support.model_files import content, prepare
from tests.support.seaweed import SECRET_KEY, Seaweed, credentials
from tests.support.server import Server, properties_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

_READ = re.compile(r"weights: rank (\d) owns (\d+) bytes, read (\d+) bytes")


def test_a_model_in_s3_is_served_and_later_prepared_without_downloads(
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
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a running server locks it against pruning
        assert proxy.object_bytes == size
        again = prepare("s3://served/tiny/", tmp_path / "cache", "", **credentials(proxy.url))
        assert again.returncode == 0, again.stderr
        assert proxy.object_bytes == size
    assert content(Path(again.stdout.splitlines()[-1])) == content(tiny_model)


@pytest.mark.mpi
def test_ranks_stream_only_their_shards_of_the_weights(
    seaweed: Seaweed, tiny_model: Path, tmp_path: Path
) -> None:
    seaweed.upload(tiny_model, "streamed", "tiny/")
    text = properties_text("s3://streamed/tiny/", load_format="stream", tensor_parallel_degree=2)
    weights = (tiny_model / "model.safetensors").stat().st_size
    small = sum(path.stat().st_size for path in tiny_model.iterdir()) - weights
    prompt = "the quick brown fox"
    with faulty_proxy(seaweed.url) as proxy:
        proxy.fault(object_named("model.safetensors"), answer(503, "SlowDown"), times=2)
        environment = {**credentials(proxy.url), "LMI_CACHE_DIR": str(tmp_path / "cache")}
        with Server(tmp_path / "server", text, environment=environment) as server:
            server.wait_ready()
            outcome = server.client.stream(prompt, max_new_tokens=12, ignore_eos_token=True)
            wait_until(lambda: len(_READ.findall(server.log())) == 2)  # mpirun forwards output with a delay
            log = server.log()
        assert proxy.object_bytes - small <= 1.1 * weights, "the ranks read more than their shards"
    assert list(outcome.token_ids) == _greedy(tiny_model, prompt, 12)
    read = _READ.findall(log)
    assert sorted(rank for rank, _, _ in read) == ["0", "1"]
    assert all(0.4 * weights <= int(num_bytes) <= 0.65 * weights for _, _, num_bytes in read)
    assert SECRET_KEY not in log
    (copy,) = (tmp_path / "cache" / "models").glob("*/model.safetensors")
    assert copy.stat().st_blocks * 512 < weights


def _greedy(model: Path, prompt: str, count: int) -> list[int]:
    from tokenizers import Tokenizer

    from tests.support.tiny_models import load_oracle, oracle_logits

    oracle = load_oracle(model, "fp32")
    ids = list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(prompt).ids)
    start = len(ids)
    while len(ids) < start + count:
        ids.append(int(oracle_logits(oracle, ids)[-1].argmax()))
    return ids[start:]
