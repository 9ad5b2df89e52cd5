"""Rolling batching with a transformers module: a request gets the same tokens alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.core_lab import CoreLab, Mode, greedy, run_all
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.transformers_models import save_transformers_model

TIGHT = Mode(max_num_seqs=5, max_prefill_tokens=16, max_num_batched_tokens=16, num_blocks=14)
MODES = {
    "preempted and chunked": TIGHT,
    "whole prompts, consecutive blocks": Mode(
        policy="guaranteed_no_evict", paged=False, prefix_caching=False, chunked_prefill=False
    ),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_tokens_match_those_of_the_request_alone(mode: Mode, tmp_path: Path) -> None:
    save_transformers_model(tmp_path, "olmo3", hidden_size=96, intermediate_size=64)
    lab = CoreLab(
        tmp_path,
        tmp_path,
        block_size=4,
        num_blocks=64,
        max_model_len=48,
        max_step_tokens=64,
        impl="transformers",
    )
    generator = fresh_generator()
    shared = integers(generator, 4, VOCAB_SIZE, 12)
    prompts = [[*shared, *integers(generator, 4, VOCAB_SIZE, count)] for count in (1, 5, 9, 3, 12, 7)]
    requests = [greedy(str(i), prompt, 16) for i, prompt in enumerate(prompts)]
    alone = {}
    for request in requests:
        alone |= run_all(lab.start(Mode(prefix_caching=False)), [request])
    running = lab.start(mode)
    assert run_all(running, requests) == alone
    if mode is TIGHT:
        counters = running.scheduler
        assert counters.num_preemptions > 0
