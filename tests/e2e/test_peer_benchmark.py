"""A complete benchmark of this server and of transformers on a tiny model, from server start to result tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.machine import detect
from container.measure.bench.workload import load_tokenizer
from container.measure.compare.configurations import NamedPath, PreparedModel, read_configurations
from tests.bench import report
from tests.bench.http_contender import Ours
from tests.bench.made_up import results_of
from tests.bench.model import read_matrices
from tests.bench.peers import PEERS
from tests.bench.peers.peer import Site
from tests.bench.quiet import Load
from tests.bench.rounds import Rounds
from tests.bench.workloads import SHAPES
from tests.support.paths import child_environment
from tests.support.server import properties_text

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_the_server_and_a_peer_are_benchmarked_and_give_equal_answers(
    tiny_model: Path, tmp_path: Path
) -> None:
    text = properties_text(tiny_model, paged_attention=True, kv_cache_gb=0.05, dtype="fp32")
    (tmp_path / "serving.properties").write_text(text)
    environ = child_environment()
    (config,) = read_configurations(
        [NamedPath("ours", tmp_path)],
        environ,
        detect(environ),
        lambda source: PreparedModel(tiny_model, tiny_model),
    )
    peer = PEERS["transformers-static-4"].prepare(Site(tiny_model, tmp_path / "peer", lambda text: None))
    rounds = Rounds(
        contenders={"ours": Ours(config, {}, environ), peer.name: peer},
        shapes=(SHAPES["smoke"],),
        num_rounds=1,
        tokenizer=load_tokenizer(tiny_model),
        matrices=read_matrices(tiny_model),
        logs=tmp_path,
        quiet=lambda: Load(0.0, ()),
        measure_limits=lambda: None,
        say=lambda text: None,
    )
    rounds.run()
    ours, peer_run = rounds.runs()
    for run in (ours, peer_run):
        assert run.figures.errors == ()
        assert run.figures.output_tokens == 12
        # All tokens of the tiny model may arrive together.
        assert 0 < run.figures.ttft.p50 <= run.figures.latency.p50
    assert (peer_run.answers_compared, peer_run.answers_equal) == (3, 3)
    assert all(life.start_up_seconds > 0 and life.peak_pss_bytes > 50 << 20 for life in rounds.lives)
    ratios, *_ = report.tables(results_of(rounds))
    assert ratios.rows[0][0] == "over transformers-static-4"
