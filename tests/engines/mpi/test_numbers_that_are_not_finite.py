"""A prompt that makes the real model compute NaN: only its request fails, and no NaN in the cache affects others."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.core import AbortReason, Request, RequestOutput
from tests.engines.conftest import Answer
from tests.support.core_lab import CoreLab, Mode, Running, greedy
from tests.support.engine_process import MAX_MODEL_LEN, VOCAB_SIZE, tokens_of

_MODES = pytest.mark.parametrize(
    "mode",
    [
        Mode("guaranteed_no_evict", paged, prefix_caching=False, max_prefill_tokens=16)
        for paged in (True, False)
    ],
    ids=["paged", "contiguous"],
)


@pytest.fixture(scope="module")
def poisoned(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]
) -> tuple[CoreLab, int]:
    """The tiny model with NaN as the embedding of a token that occurs in no answer, and that token."""
    used = {token for answer in answers for token in (*answer.prompt, *answer.tokens)}
    poison = next(token for token in range(VOCAB_SIZE) if token not in used)
    folder = tmp_path_factory.mktemp("poisoned")
    shutil.copytree(tiny_llama, folder / "model")
    tensors = load_file(folder / "model/model.safetensors")
    tensors["model.embed_tokens.weight"][poison] = torch.nan
    save_file(tensors, folder / "model/model.safetensors", metadata={"format": "pt"})
    lab = CoreLab(folder / "model", folder, block_size=8, num_blocks=40, max_model_len=MAX_MODEL_LEN)
    return lab, poison


def _serve(running: Running, *turns: Sequence[Request]) -> dict[str, list[RequestOutput]]:
    """Add the requests of one turn before each step, and run until all requests have ended."""
    outputs: dict[str, list[RequestOutput]] = defaultdict(list)
    waiting = list(turns)
    while waiting or running.core.has_work:
        for request in waiting.pop(0) if waiting else ():
            running.core.add(request)
        for output in running.core.step():
            outputs[output.id].append(output)
    assert running.blocks.num_used == 0
    return outputs


def _good(answers: Sequence[Answer]) -> list[Request]:
    return [greedy(f"good {i}", answer.prompt, len(answer.tokens)) for i, answer in enumerate(answers)]


def _check(outputs: dict[str, list[RequestOutput]], answers: Sequence[Answer]) -> None:
    for i, answer in enumerate(answers):
        found = outputs[f"good {i}"]
        assert tuple(tokens_of(found)) == answer.tokens, found[-1].error_message


@_MODES
@pytest.mark.parametrize("length", [1, 8, 60])
def test_a_prompt_with_nan_fails_alone_among_running_requests(
    poisoned: tuple[CoreLab, int], answers: list[Answer], mode: Mode, length: int
) -> None:
    """The other requests share its steps, and their masked slots may contain the NaN that it has written."""
    lab, poison = poisoned
    running = answers[:6]
    good = _good(running)
    bad = greedy("bad", (poison,) * length, 8)
    again = greedy("bad again", (1, 2, 3, poison), 8)
    outputs = _serve(lab.start(mode), good[:3], [], [bad], good[3:], [], [again])
    for name in ("bad", "bad again"):
        (end,) = outputs[name]
        assert end.error_kind == "request_failed"
        assert "not finite" in end.error_message
    _check(outputs, running)


@_MODES
@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "failed"])
def test_blocks_that_contained_nan_can_be_reused(
    poisoned: tuple[CoreLab, int], answers: list[Answer], mode: Mode, aborted: bool
) -> None:
    """The request has filled blocks with NaN, and was then aborted by its client or has failed."""
    lab, poison = poisoned
    running, bad = lab.start(mode), greedy("bad", (poison,) * 100, 20)
    if aborted:
        running.core.add(bad)
        for _ in range(3):
            assert running.core.step() == []
        running.core.abort("bad", AbortReason.CLIENT_LEFT)
    else:
        assert [output.error_kind for output in _serve(running, [bad])["bad"]] == ["request_failed"]
    _check(_serve(running, _good(answers[:8])), answers[:8])
