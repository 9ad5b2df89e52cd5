"""Two MPI ranks: the same tokens, and a clear end when one of them is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Ending
from tests.support.metrics import RUNNING, wait_metrics
from tests.support.oracle import oracle
from tests.support.prompts import by_name
from tests.support.server import StartServer, properties_text

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.mpi]

TOKENS = 16
"""Few: two ranks and another test's server share the processors. `make verify` takes whole answers at every degree."""
LONG = {"max_new_tokens": 3000, "ignore_eos_token": True}


def test_two_ranks_answer_alike_and_end_together(bundled_model: Path, start_server: StartServer) -> None:
    server = start_server(properties_text(bundled_model, tensor_parallel_degree=2))
    ranks = server.ranks()
    assert sorted(ranks) == [0, 1]
    (expected,) = oracle(bundled_model, by_name("recipe"))
    got = server.client.stream(expected.text, max_new_tokens=TOKENS)
    assert got.ending is Ending.COMPLETE, got.describe()
    assert tuple(got.token_ids) == expected.token_ids[:TOKENS]

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(server.client.stream, "Once", **LONG) for _ in range(2)]
        clients += [pool.submit(server.client.generate, "Once", **LONG) for _ in range(2)]
        busy = wait_metrics(server.client, lambda seen: seen[RUNNING] == 4, 20.0)
        assert busy[RUNNING] == 4
        ranks[1].kill()
        code = server.wait_exit(10.0)
        endings = [client.result().ending for client in clients]
    assert code not in {0, None}
    assert endings == [Ending.TOLD] * 4, server.log_tail()
    assert "rank 1" in server.log_tail()
    assert server.left_over() == []
