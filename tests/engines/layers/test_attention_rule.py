"""One description of how a layer attends: what it asks for, and what each backend makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import lmi_kernels
from engines.layers.attention_rule import AttentionRule
from engines.layers.paged_step_attention import PagedStepAttention
from engines.layers.recorded_attention import RecordedAttention
from engines.layers.rotary import rotary_tables
from engines.layers.step_attention import TorchStepAttention
from engines.models.config import AttentionSpec, Rotary
from lmi_kernels import PagedSequences, ScoreRules
from lmi_kernels.cpu.recorder import NotRecorded, Recorder
from lmi_kernels.cpu.team import shared_team

CPU = torch.device("cpu")
ROTARY = Rotary(16)
TABLES = rotary_tables([ROTARY], 8, CPU)
PLAIN = AttentionSpec(scale=0.25, rotary=ROTARY)
SLOPES = torch.tensor([0.5, 0.25])
POOL = torch.zeros(2, 1, 2, 4, 16)


def _rule(spec: AttentionSpec, **tensors: Any) -> AttentionRule:
    return AttentionRule(spec, 2, 1, 16, **tensors)


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"scale": 1.0}, "scale"),
        ({"window": 4}, "window"),
        ({"softcap": 50.0}, "softcap"),
        ({"rotary": None}, "no rotary"),
        ({"rotary": Rotary(8)}, "partial rotary"),
        ({"rotary": Rotary(16, interleaved=True)}, "interleaved rotary"),
    ],
)
def test_what_a_backend_does_not_support_is_refused_by_name(changes: dict[str, Any], feature: str) -> None:
    assert _rule(PLAIN).features == frozenset()
    rule = _rule(replace(PLAIN, **changes))
    assert rule.features == {feature}
    torch_step = TorchStepAttention(*torch.zeros(2, 1, dtype=torch.int64), {}, ())
    with pytest.raises(ValueError, match=f"attention with {feature} is not supported"):
        torch_step.attend(torch.zeros(1, 64), rule, POOL)


def test_tensors_are_features_too() -> None:
    norms = torch.ones(16), torch.ones(16)
    rule = _rule(PLAIN, norms=norms, alibi_slopes=SLOPES, sinks=SLOPES)
    assert rule.features == {"norms", "alibi", "sinks"}


def test_native_kernels_get_all_rules_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    team = shared_team()
    if team is None:
        pytest.skip("native kernels are not built")
    recorder = Recorder(team, 4)
    rows = recorder.gathered(torch.zeros(4, 64), 64)
    calls: list[Any] = []
    monkeypatch.setattr(Recorder, "rope_and_store", lambda *arguments: calls.append(arguments[5]))
    monkeypatch.setattr(
        Recorder, "attention", lambda *arguments, **rules: calls.append((arguments[3], rules))
    )
    step = RecordedAttention(recorder.positions(), TABLES)
    spec = replace(PLAIN, rotary=None, scale=1.0, window=4, softcap=30.0)
    step.attend(rows, _rule(spec, alibi_slopes=SLOPES, sinks=SLOPES), None)
    assert calls[0] is None
    assert calls[1] == (1.0, {"window": 4, "softcap": 30.0, "alibi_slopes": SLOPES, "sinks": SLOPES})
    interleaved = replace(PLAIN, rotary=Rotary(16, interleaved=True))
    with pytest.raises(NotRecorded, match="attention with interleaved rotary is not supported"):
        step.attend(rows, _rule(interleaved), None)


def test_a_gpu_gets_all_rules_of_scores_and_the_plan_of_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def rope_and_store(qkv: Any, cos_sin: Any, *arguments: Any) -> torch.Tensor:
        calls.append(cos_sin)
        return torch.zeros(1, 2, 16)

    monkeypatch.setattr(lmi_kernels, "rope_and_store", rope_and_store)
    monkeypatch.setattr(lmi_kernels, "decode_attention", lambda *arguments: calls.append(arguments[3:5]))
    one = torch.zeros(1, dtype=torch.int64)
    singles = PagedSequences(one[None], one, one)
    plans: Any = {None: "plan of all tokens", 4: "plan of the window"}
    step = PagedStepAttention(one, one, TABLES, singles, plans)
    step.attend(torch.zeros(1, 64), _rule(PLAIN), POOL)
    spec = replace(PLAIN, rotary=None, scale=1.0, window=4, softcap=30.0)
    step.attend(torch.zeros(1, 64), _rule(spec, alibi_slopes=SLOPES), POOL)
    assert calls[0] is TABLES[ROTARY]
    assert calls[1] == ("plan of all tokens", ScoreRules(0.25))
    assert calls[2] is None
    assert calls[3] == ("plan of the window", ScoreRules(1.0, 4, 30.0, SLOPES))
    with pytest.raises(ValueError, match="attention with sinks is not supported"):
        step.attend(torch.zeros(1, 64), _rule(PLAIN, sinks=SLOPES), POOL)
