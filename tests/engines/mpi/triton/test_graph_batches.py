"""Batches padded to the size of a graph, and their results on the host, in the Triton interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import lmi_kernels
from engines.core import SamplingParams
from engines.mpi.runner import gpu_steps, loading
from engines.mpi.runner.loading import LoadedModel
from engines.sampling.batch import SamplingRow
from lmi_kernels._triton import INTERPRETED
from tests.support.plans import PlanMaker
from tests.support.recorded_graphs import EagerGraphs
from tests.support.tiny_models import make_runner, save_llama, save_model

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

_SHAPE: dict[str, Any] = {
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> EagerGraphs:
    found = EagerGraphs()
    monkeypatch.setattr(gpu_steps, "graph_recorder", lambda device: found)
    monkeypatch.setattr(loading, "batch_sizes", lambda largest: [4])
    return found


_DEVICE, _HOST = SamplingParams(max_new_tokens=1), SamplingParams(max_new_tokens=1, top_logprobs=1)
"""Parameters with which the device or the host samples."""


def _decode(runner: LoadedModel, *params: SamplingParams) -> Any:
    """Run a step of single tokens, one for each of `params`."""
    maker = PlanMaker()
    for row in range(len(params)):
        maker.begin(row, [row])
    plan = maker.plan({row: [5 + row] for row in range(len(params))})
    runner.steps.update(plan)
    rows = [SamplingRow(f"r{row}", each, [5 + row], 1) for row, each in enumerate(params)]
    return runner.steps.compute(runner.steps.prepare(plan), rows=rows)


def test_padding_is_routed_to_no_expert(
    tmp_path: Path, graphs: EagerGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "mixtral", **_SHAPE)
    runner = make_runner(tmp_path)
    seen: list[torch.Tensor] = []
    experts = lmi_kernels.experts

    def recording_experts(
        x: Any, logits: Any, weights: Any, top_k: int, slots: torch.Tensor, *more: Any
    ) -> Any:
        seen.append(slots)
        return experts(x, logits, weights, top_k, slots, *more)

    monkeypatch.setattr(lmi_kernels, "experts", recording_experts)
    _decode(runner, _DEVICE, _DEVICE, _DEVICE)
    assert graphs.num_replays == 1
    assert (seen[-1] >= 0).tolist() == [True, True, True, False]


class _NoListIndices(TorchFunctionMode):
    """Fails when a list is used as an index: its copy from unpinned memory makes the host wait for the device."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(each, list) for each in index), f"a list as an index: {index}"
        return func(*args, **(kwargs or {}))


def test_the_host_gets_only_the_logits_that_it_samples_from(tmp_path: Path, graphs: EagerGraphs) -> None:
    save_llama(tmp_path, **_SHAPE)
    runner = make_runner(tmp_path)
    with _NoListIndices():
        result = _decode(runner, _HOST, _HOST, _HOST)
    assert graphs.num_replays == 1
    assert result.logits.shape[0] == 3
    # The next replay overwrites the logits of the graph.
    before = result.logits.clone()
    assert torch.equal(_decode(runner, _HOST, _DEVICE, _HOST).logits, before[[0, 2]])
    assert torch.equal(result.logits, before)
