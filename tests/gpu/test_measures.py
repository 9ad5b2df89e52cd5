"""Test the measuring tools, and that they do not import packages that the machine with the GPU may lack."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.core import Request
from tests.gpu import sweep
from tests.gpu.context import Context
from tests.gpu.engine import Outcome
from tests.gpu.parts import aws
from tests.gpu.parts import engine as engine_part
from tests.gpu.parts.engine import differences, first_difference, greedy_but_for_rounding, report_gap
from tests.gpu.parts.races import verdict
from tests.gpu.results import Results
from tests.gpu.shapes import memory_bytes, real, write
from tests.gpu.sweep import Search, climb
from tests.gpu.timeline import by_name, gaps
from tests.gpu.timing import Deadline, Timing
from tests.support.paths import REPO_ROOT, child_environment

_ABSENT = "flask,zmq,msgspec,boto3,gevent,gunicorn,prometheus_client,openai,hypothesis,psutil"
_IMPORT_ALL = """
import importlib, sys
from importlib.abc import MetaPathFinder
peer = {"transformers", "mpi4py", "pytest"}
absent = peer | set(sys.argv[1].split(","))
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from tests.gpu import chapters, one_kernel, one_part
from tests.gpu.plan import PARTS
for module in sorted({part.module for part in PARTS.values()} - {"engine"}):
    importlib.import_module(f"tests.gpu.parts.{module}")
absent -= peer
importlib.import_module("tests.gpu.parts.engine")
"""


@pytest.mark.long
def test_parts_import_only_available_packages() -> None:
    """Only the `engine` parts, which compare with transformers, may import it."""
    process = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, _ABSENT],
        cwd=REPO_ROOT,
        env=child_environment({"PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'kernels'}"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_published_figures_equal_those_of_lmi_compare() -> None:
    compare = pytest.importorskip("container.measure.compare.aws_post")
    ours = {configuration.name: configuration.published for configuration in aws.CONFIGURATIONS}
    for name, theirs in (
        ("static 4", compare.DYNAMIC),
        ("rolling", compare.ROLLING),
        ("rolling paged", compare.PAGED),
    ):
        published = ours[name]
        assert published is not None
        expected = compare.PUBLISHED[theirs]
        assert published.tokens_per_second == expected[compare.TOKENS_PER_SECOND]
        assert published.latency_p90 == expected[compare.LATENCY_P90]
    workloads: list[Any] = [compare.PRESETS[name].workload for name in compare._SCENARIOS]
    assert tuple((each.prompts.tokens, each.outputs.tokens) for each in workloads) == aws.SCENARIOS


def test_idle_share_counts_only_long_gaps() -> None:
    # Busy from 0 to 10 (with a span inside), a short gap, busy from 12 to 20, a long gap, busy from 40 to 50.
    spans = [(12.0, 20.0), (0.0, 10.0), (2.0, 5.0), (40.0, 50.0)]
    assert gaps(spans) == pytest.approx(20 / 50)
    assert gaps([(3.0, 4.0)]) == 0.0
    with pytest.raises(ValueError, match="no work"):
        gaps([])


def test_kernels_are_sorted_by_total_time() -> None:
    kernels = by_name([("a", 1.0), ("b", 5.0), ("a", 3.0), ("c" * 99, 0.5)])
    assert [(each.name, each.count, each.seconds) for each in kernels] == [
        ("b", 1, 5.0),
        ("a", 2, 4.0),
        ("c" * 70, 1, 0.5),
    ]


@pytest.mark.parametrize(
    ("tokens", "expected", "index"),
    [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([4], [4], 1), ([], [1], 0)],
)
def test_index_of_the_first_difference(tokens: list[int], expected: list[int], index: int) -> None:
    assert first_difference(tokens, expected) == index


@pytest.mark.parametrize(
    ("num_differing", "num_wrong", "text"),
    [
        (1, 0, "1 request differs, by no more than rounding"),
        (1, 1, "1 request differs, by more than rounding"),
        (3, 0, "3 requests differ, by no more than rounding"),
        (3, 2, "3 requests differ, 2 of them by more than rounding"),
    ],
)
def test_requests_that_differ_are_described(num_differing: int, num_wrong: int, text: str) -> None:
    assert differences(num_differing, num_wrong) == text


class _Tie:
    """Model whose tokens 1 and 2 have the largest logits for any prompt."""

    device = "cpu"

    def __init__(self, gap: float = 0.25) -> None:
        self._logits = torch.tensor([0.5, 2.0, 2.0 - gap, -1.0])

    def __call__(self, ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self._logits.expand(1, ids.shape[1], 4))


def test_the_logit_gap_is_reported_where_a_token_differs(tmp_path: Path) -> None:
    results = Results("engine-llama", torch.device("cpu"), smoke=True)
    context = Context(results, torch.device("cpu"), True, tmp_path, tmp_path, Deadline(60.0))
    report_gap(context, "request 1", _Tie(), [3, 3], tokens=[1, 2], expected=[1, 1])
    (entry,) = results.entries
    assert entry.value == 0.25
    assert entry.name.startswith("request 1: gap between the two largest logits")
    assert "our token is the second: True" in entry.note


@pytest.mark.parametrize(
    ("gap", "tokens", "equal"),
    [
        (1e-5, [1, 2], True),
        (1e-5, [2, 2], True),
        (0.25, [1, 1], True),
        # Two tokens are nearly equal, but not these; too few tokens; not a tie.
        (1e-5, [2, 0], False),
        (1e-5, [2], False),
        (0.25, [1, 2], False),
    ],
)
def test_only_ties_may_change_a_token(gap: float, tokens: list[int], equal: bool) -> None:
    assert greedy_but_for_rounding(_Tie(gap), [3, 3], tokens, count=2) is equal


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", False),
        ("========= Device not supported", None),
    ],
)
def test_verdict_of_the_sanitizers_summary(line: str, expected: bool | None) -> None:
    assert verdict(line) is expected


def test_measurements_without_time_are_reported_as_missing(tmp_path: Path) -> None:
    results = Results("steps", torch.device("cpu"), smoke=False)
    context = Context(results, torch.device("cpu"), False, tmp_path, tmp_path, Deadline(10.0))
    assert context.has_time_for(1.0, "short")
    assert not context.has_time_for(20.0, "long")
    assert [(entry.name, entry.passed) for entry in results.entries] == [("long", None)]


@pytest.mark.parametrize(("free_bytes", "fits"), [(141e9, True), (84e9, False)])
def test_a_model_larger_than_the_gpu_is_not_measured(
    free_bytes: float, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, free_bytes))
    results = Results("steps-large", torch.device("cpu"), smoke=False)
    context = Context(results, torch.device("cuda"), False, tmp_path, tmp_path, Deadline(10.0))
    # 91.4 GB without the embedding, which is looked up on this device.
    needed = memory_bytes(write(real("mixtral-8x7b", smoke=False), tmp_path / "model"))
    assert 93e9 < needed < 97e9
    assert context.has_memory_for(needed, "mixtral-8x7b") is fits
    assert [(entry.name, entry.passed) for entry in results.entries] == [("mixtral-8x7b", None)] * (not fits)


def test_timing_is_the_median_and_the_range() -> None:
    assert Timing.of([3.0, 1.0, 2.0, 9.0, 2.5]) == Timing(2.5, 1.0, 9.0)


class FakeKernel:
    """Kernel with a known time for all launch parameters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = {"op": {"key": {"a": 1, "b": 1}}}
        monkeypatch.setattr(sweep.tuning, "_table", lambda name: self.table)
        monkeypatch.setattr(sweep, "_seconds", lambda groups, device, repeats: self.seconds())

    def parameters(self) -> dict[str, int]:
        return self.table["op"]["key"]

    def seconds(self) -> float:
        a, b = self.parameters()["a"], self.parameters()["b"]
        return abs(a - 4) + 2 * abs(b - 2) + 1.0

    def call(self) -> torch.Tensor:
        if self.parameters()["a"] == 8:
            raise RuntimeError("out of resources: shared memory")
        # With b = 3 the result is wrong.
        return torch.full((3,), 2.0 if self.parameters()["b"] == 3 else 1.0)


def test_the_search_finds_the_fastest_correct_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(monkeypatch)
    space = {"a": (1, 2, 4, 8), "b": (1, 2, 3), "c": (5,)}
    search = Search("op", "key", space, lambda: [[kernel.call]])
    result = climb(search, torch.device("cpu"), Deadline(60.0), 1)
    assert result.parameters == {"a": 4, "b": 2}
    assert (result.before, result.after) == (6.0, 1.0)
    assert len(result.incorrect) == 1
    assert "'b': 3" in result.incorrect[0]
    assert kernel.table == {"op": {"key": {"a": 1, "b": 1}}}


def test_the_search_stops_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(monkeypatch)
    search = Search("op", "key", {"a": (1, 2, 4)}, lambda: [[kernel.call]])
    result = climb(search, torch.device("cpu"), Deadline(-1.0), 1)
    assert result.parameters == {"a": 1, "b": 1}
    assert result.num_tried == 1


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3])
def test_requests_with_too_few_or_too_many_tokens_fail_the_check_of_penalties(
    num_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(running: None, requests: Sequence[Request], device: torch.device) -> Outcome:
        logprob = float(torch.zeros(3).log_softmax(-1)[0])
        tokens = {request.id: [0, 1, 2][:num_tokens] for request in requests}
        logprobs = {name: [logprob] * num_tokens for name in tokens} if num_tokens else {}
        return Outcome(tokens, logprobs)

    monkeypatch.setattr(engine_part, "run_requests", run)
    monkeypatch.setattr(engine_part.oracle, "logits", lambda model, tokens: torch.zeros(3))
    engine: Any = SimpleNamespace(start=lambda: None, config=SimpleNamespace(vocab_size=3))
    device = torch.device("cpu")
    results = Results("engine-llama", device, smoke=True)
    context = Context(results, device, smoke=True, folder=tmp_path, out=tmp_path, deadline=Deadline(100.0))
    engine_part._check_sampling(context, "tiny", engine, [[0, 0]], None)
    assert [entry.passed for entry in results.entries] == [num_tokens == 2] * 2
