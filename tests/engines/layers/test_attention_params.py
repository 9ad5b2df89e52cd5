"""`AttentionParams`: the attention of a layer, as each backend computes it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import lmi_kernels
from engines.layers.attention_params import AttentionParams
from engines.layers.paged_step_attention import PagedStepAttention
from engines.layers.recorded_attention import RecordedAttention
from engines.layers.rotary import cosines_and_sines, rotary_tables
from engines.layers.step_attention import TorchStepAttention
from engines.models.config import AttentionSpec, Rotary
from lmi_kernels import PagedSequences, ScoreRules
from lmi_kernels.cpu.recorder import Recorder
from lmi_kernels.cpu.team import shared_team
from tests.support.seeds import fresh_generator

CPU = torch.device("cpu")
ROTARY, PARTIAL = Rotary(16), Rotary(10)
TABLES = rotary_tables([ROTARY, PARTIAL], 8, CPU)
PLAIN = AttentionSpec(scale=0.25, rotary=ROTARY)
SLOPES = torch.tensor([0.5, 0.25])
POOL = torch.zeros(2, 1, 2, 4, 16)


def _params(spec: AttentionSpec, **tensors: Any) -> AttentionParams:
    return AttentionParams(spec, 2, 1, 16, **tensors)


HEADS, KV_HEADS, DIM = 4, 2, 16
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 1.0},
    "window": {"window": 4},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": True},
    "no rotary": {"rotary": None},
    "partial rotary": {"rotary": Rotary(6)},
    "partial, window, sinks": {"rotary": PARTIAL, "window": 3, "sinks": True},
}


@pytest.mark.parametrize("name", RULES)
@torch.inference_mode()
def test_torch_attention_applies_every_rule(name: str) -> None:
    """Compute a prompt of 9 tokens, first whole, then in chunks. The last chunk has one token."""
    generator = fresh_generator()
    spec = replace(PLAIN, **RULES[name])
    sinks = torch.randn(HEADS, generator=generator) if spec.sinks else None
    slopes = None if spec.alibi_slopes is None else torch.tensor(spec.alibi_slopes)
    params = AttentionParams(spec, HEADS, KV_HEADS, DIM, alibi_slopes=slopes, sinks=sinks)
    qkv = torch.randn(9, (HEADS + 2 * KV_HEADS) * DIM, generator=generator)
    expected = _expected(qkv.double(), params)
    for bounds in ((0, 9), (0, 2, 6, 8, 9)):
        pool = torch.full((2, KV_HEADS, 3, 4, DIM), torch.nan)
        found = []
        for start, stop in pairwise(bounds):
            positions = torch.arange(start, stop)
            tables = rotary_tables([] if spec.rotary is None else [spec.rotary], 9, CPU)
            angles = {rotary: cosines_and_sines(table, positions) for rotary, table in tables.items()}
            rows = (lmi_kernels.SequenceRows(0, stop - start, stop, torch.arange(-(-stop // 4))),)
            step = TorchStepAttention(positions, positions, angles, rows)
            found.append(step.attend(qkv[start:stop].clone(), params, pool))
        torch.testing.assert_close(torch.cat(found).double(), expected, rtol=1e-5, atol=1e-5)


def _expected(qkv: torch.Tensor, params: AttentionParams) -> torch.Tensor:
    """Compute attention in fp64, one query and head at a time: [num_tokens, heads * head_dim]."""
    spec, num_tokens = params.spec, len(qkv)
    q, k, v = qkv.view(num_tokens, -1, DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    if spec.rotary is not None:
        q, k = _rotate(q, spec.rotary), _rotate(k, spec.rotary)
    out = torch.zeros(num_tokens, HEADS, DIM, dtype=torch.float64)
    for query in range(num_tokens):
        visible = torch.arange(max(0, query + 1 - (spec.window or num_tokens)), query + 1)
        for head in range(HEADS):
            scores = k[visible, head // 2] @ q[query, head] * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * (scores / spec.softcap).tanh()
            if params.alibi_slopes is not None:
                scores = scores + params.alibi_slopes[head] * (visible - query)
            weights = scores.exp()
            total = weights.sum() + (0 if params.sinks is None else params.sinks[head].double().exp())
            out[query, head] = weights @ v[visible, head // 2] / total
    return out.flatten(1)


def _rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Apply the rotary embedding in fp64. x: [num_tokens, heads, head_dim]."""
    y = x.clone()
    for i in range(rotary.dim // 2):
        angle = torch.arange(len(x)).double()[:, None] * rotary.theta ** (-2 * i / rotary.dim)
        first, second = i, i + rotary.dim // 2
        y[..., first] = x[..., first] * angle.cos() - x[..., second] * angle.sin()
        y[..., second] = x[..., second] * angle.cos() + x[..., first] * angle.sin()
    return y


def test_native_kernels_get_all_score_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    team = shared_team()
    if team is None:
        pytest.skip("native kernels are not built")
    recorder = Recorder(team, 4)
    rows = recorder.gather(torch.zeros(4, 64), 64)
    calls: list[Any] = []
    monkeypatch.setattr(Recorder, "rope_and_store", lambda *arguments: calls.append(arguments[5]))
    monkeypatch.setattr(Recorder, "attention", lambda *arguments: calls.append(arguments[4]))
    step = RecordedAttention(recorder.positions, recorder.places, TABLES)
    spec = replace(PLAIN, rotary=None, scale=1.0, window=4, softcap=30.0)
    step.attend(rows, _params(spec, alibi_slopes=SLOPES, sinks=SLOPES), None)
    assert calls[0] is None
    assert calls[1] == ScoreRules(1.0, 4, 30.0, SLOPES, SLOPES)
    step.attend(rows, _params(replace(PLAIN, rotary=PARTIAL)), None)
    assert calls[2] is TABLES[PARTIAL]


def test_gpu_kernels_get_all_score_rules_and_the_plan_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def rope_and_store(qkv: Any, cos_sin: Any, *arguments: Any) -> torch.Tensor:
        calls.append(cos_sin)
        return torch.zeros(1, 2, 16)

    monkeypatch.setattr(lmi_kernels, "rope_and_store", rope_and_store)
    monkeypatch.setattr(lmi_kernels, "decode_attention", lambda *arguments: calls.append(arguments[3:5]))
    zero = torch.zeros(1, dtype=torch.int64)
    decodes = PagedSequences(zero[None], zero, zero)
    plans: Any = {None: "plan of all tokens", 4: "plan of the window"}
    step = PagedStepAttention(zero, zero, TABLES, decodes, plans)
    step.attend(torch.zeros(1, 64), _params(PLAIN), POOL)
    spec = replace(PLAIN, rotary=PARTIAL, scale=1.0, window=4, softcap=30.0)
    step.attend(torch.zeros(1, 64), _params(spec, alibi_slopes=SLOPES, sinks=SLOPES), POOL)
    assert calls[0] is TABLES[ROTARY]
    assert calls[1] == ("plan of all tokens", ScoreRules(0.25))
    assert calls[2] is TABLES[PARTIAL]
    assert calls[3] == ("plan of the window", ScoreRules(1.0, 4, 30.0, SLOPES, SLOPES))
