"""Two MPI ranks that serve a tiny model from S3, and exit together. `make verify` serves the bundled model from S3."""

from __future__ import annotations

import fcntl
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Ending
from tests.support.faulty_proxy import answer, faulty_proxy, object_named
from tests.support.metrics import RUNNING, wait_metrics
from tests.support.model_files import content, prepare
from tests.support.seaweed import SECRET_KEY, Seaweed, credentials
from tests.support.server import Server, properties_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]

_READ = re.compile(r"weights: rank (\d) owns (\d+) bytes, read (\d+) bytes")
_PROMPT = "the quick brown fox"


def test_ranks_stream_only_their_shards_of_the_weights_and_exit_together(
    seaweed: Seaweed, tiny_model: Path, tmp_path: Path
) -> None:
    seaweed.upload(tiny_model, "streamed", "tiny/")
    text = properties_text("s3://streamed/tiny/", load_format="stream", tensor_parallel_degree=2)
    weights = (tiny_model / "model.safetensors").stat().st_size
    small = sum(path.stat().st_size for path in tiny_model.iterdir()) - weights
    cache = tmp_path / "cache"
    with faulty_proxy(seaweed.url) as proxy:
        proxy.fault(object_named("model.safetensors"), answer(503, "SlowDown"), times=2)
        environment = {**credentials(proxy.url), "LMI_CACHE_DIR": str(cache)}
        with Server(tmp_path / "server", text, environment=environment) as server:
            outcome = server.client.stream(_PROMPT, max_new_tokens=12, ignore_eos_token=True)
            (copy,) = (cache / "models").glob("*/model.safetensors")
            assert copy.stat().st_blocks * 512 < weights
            listed = cache / "models" / ".remote" / f"{copy.parent.name}.json"
            with listed.open("r+b") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a running server locks it against pruning
            wait_until(lambda: len(_READ.findall(server.log())) == 2)  # mpirun forwards output with a delay
            _kill_a_rank_under_load(server)
            log = server.log()
        assert proxy.object_bytes - small <= 1.1 * weights, "the ranks read more than their shards"
        whole = prepare("s3://streamed/tiny/", cache, "", **credentials(proxy.url))
    assert whole.returncode == 0, whole.stderr
    assert content(Path(whole.stdout.splitlines()[-1])) == content(tiny_model)
    assert list(outcome.token_ids) == _greedy(tiny_model, _PROMPT, 12)
    read = _READ.findall(log)
    assert sorted(rank for rank, _, _ in read) == ["0", "1"]
    assert all(0.4 * weights <= int(num_bytes) <= 0.65 * weights for _, _, num_bytes in read)
    assert SECRET_KEY not in log


def _kill_a_rank_under_load(server: Server) -> None:
    """Every client gets an error, and the server exits with all of its processes."""
    long = {"max_new_tokens": 12000, "ignore_eos_token": True}
    ranks = server.ranks()
    assert sorted(ranks) == [0, 1]
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(call, "Once", **long) for call in (server.client.stream, server.client.generate) * 2
        ]
        busy = wait_metrics(server.client, lambda seen: seen[RUNNING] == 4, SECONDS)
        assert busy[RUNNING] == 4
        ranks[1].kill()
        code = server.wait_exit()
        endings = [call.result().ending for call in calls]
    assert code not in {0, None}
    assert endings == [Ending.ERROR] * 4, server.log_tail()
    assert "rank 1 was killed by SIGKILL" in server.log_tail()
    assert server.leftover_processes() == []


def _greedy(model: Path, prompt: str, count: int) -> list[int]:
    from tokenizers import Tokenizer

    from tests.support.tiny_models import load_oracle, oracle_logits

    oracle = load_oracle(model, "fp32")
    ids = list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(prompt).ids)
    start = len(ids)
    while len(ids) < start + count:
        ids.append(int(oracle_logits(oracle, ids)[-1].argmax()))
    return ids[start:]
