"""Test the measuring tools, and that they do not import packages that the machine with the GPU may lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.gpu import sweep
from tests.gpu.context import Context
from tests.gpu.parts import aws
from tests.gpu.parts.engine import first_difference, report_gap
from tests.gpu.parts.races import verdict
from tests.gpu.results import Results
from tests.gpu.sweep import Subject, climb
from tests.gpu.timeline import by_name, gaps
from tests.gpu.timing import Deadline, Timing
from tests.support.paths import REPO_ROOT, child_environment

_ABSENT = (
    "flask",
    "zmq",
    "msgspec",
    "boto3",
    "gevent",
    "gunicorn",
    "prometheus_client",
    "openai",
    "hypothesis",
    "psutil",
)
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


def test_parts_import_what_they_need_and_no_more() -> None:
    """Only the `engine` parts, which compare with transformers, may import it."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, ",".join(_ABSENT)],
        cwd=REPO_ROOT,
        env=child_environment({"PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'kernels'}"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_posts_table_is_that_of_lmi_compare() -> None:
    compare = pytest.importorskip("container.measure.compare.aws_post")
    ours = {arm.name: arm.post for arm in aws.ARMS}
    for name, theirs in (
        ("static 4", compare.DYNAMIC),
        ("rolling", compare.ROLLING),
        ("rolling paged", compare.PAGED),
    ):
        post = ours[name]
        assert post is not None
        published = compare.PUBLISHED[theirs]
        assert post.tokens_per_second == published.tokens_per_second
        assert post.latency_p90 == published.latency_p90
    workloads: list[Any] = [compare.PRESETS[name].workload for name in compare._SCENARIOS]
    assert tuple((each.prompts.tokens, each.outputs.tokens) for each in workloads) == aws.SCENARIOS


def test_gaps_are_what_no_activity_covers() -> None:
    # Busy from 0 to 10 (with a span inside), a short gap, busy from 12 to 20, a long gap, busy from 40 to 50.
    spans = [(12.0, 20.0), (0.0, 10.0), (2.0, 5.0), (40.0, 50.0)]
    assert gaps(spans) == pytest.approx(20 / 50)
    assert gaps([(3.0, 4.0)]) == 0.0
    with pytest.raises(ValueError, match="no work"):
        gaps([])


def test_a_table_of_kernels_has_the_longest_first() -> None:
    found = by_name([("a", 1.0), ("b", 5.0), ("a", 3.0), ("c" * 99, 0.5)])
    assert [(each.name, each.count, each.seconds) for each in found] == [
        ("b", 1, 5.0),
        ("a", 2, 4.0),
        ("c" * 70, 1, 0.5),
    ]


@pytest.mark.parametrize(
    ("found", "right", "place"),
    [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([4], [4], 1), ([], [1], 0)],
)
def test_where_tokens_begin_to_differ(found: list[int], right: list[int], place: int) -> None:
    assert first_difference(found, right) == place


class _Tie:
    """Model whose two largest logits differ by 0.25 for any prompt."""

    device = "cpu"

    def __call__(self, ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=torch.tensor([0.5, 2.0, 1.75, -1.0]).expand(1, ids.shape[1], 4))


def test_where_a_token_differs_the_gap_is_told(tmp_path: Path) -> None:
    results = Results("engine-llama", torch.device("cpu"), smoke=True)
    context = Context(results, torch.device("cpu"), True, tmp_path, tmp_path, Deadline(60.0))
    report_gap(context, "request 1", _Tie(), [3, 3], found=[1, 2], right=[1, 1])
    (entry,) = results.entries
    assert entry.value == 0.25
    assert entry.name.startswith("request 1: gap between the two likeliest logits")
    assert "ours is the second: True" in entry.note


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", True),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", False),
        ("========= Device not supported", None),
    ],
)
def test_what_the_sanitizer_says(words: str, right: bool | None) -> None:
    assert verdict(words) is right


def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    results = Results("steps", torch.device("cpu"), smoke=False)
    context = Context(results, torch.device("cpu"), False, tmp_path, tmp_path, Deadline(10.0))
    assert context.has(1.0, "short")
    assert not context.has(20.0, "long")
    assert [(entry.name, entry.passed) for entry in results.entries] == [("long", None)]


def test_the_median_and_its_spread() -> None:
    assert Timing.of([3.0, 1.0, 2.0, 9.0, 2.5]) == Timing(2.5, 1.0, 9.0)


class Costs:
    """Kernel with a known time for all launch parameters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = {"op": {"key": {"a": 1, "b": 1}}}
        monkeypatch.setattr(sweep.tuning, "_table", lambda name: self.table)
        monkeypatch.setattr(sweep, "_seconds", lambda groups, device, repeats: self.seconds())

    def now(self) -> dict[str, int]:
        return self.table["op"]["key"]

    def seconds(self) -> float:
        a, b = self.now()["a"], self.now()["b"]
        return abs(a - 4) + 2 * abs(b - 2) + 1.0

    def call(self) -> torch.Tensor:
        if self.now()["a"] == 8:
            raise RuntimeError("out of resources: shared memory")
        # With b = 3 the result is wrong.
        return torch.full((3,), 2.0 if self.now()["b"] == 3 else 1.0)


def test_climbing_finds_the_fastest_that_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch)
    space = {"a": (1, 2, 4, 8), "b": (1, 2, 3), "c": (5,)}
    subject = Subject("op", "key", space, lambda: [[costs.call]])
    found = climb(subject, torch.device("cpu"), Deadline(60.0), 1)
    assert found.parameters == {"a": 4, "b": 2}
    assert (found.before, found.after) == (6.0, 1.0)
    assert len(found.wrong) == 1
    assert "'b': 3" in found.wrong[0]
    assert costs.table == {"op": {"key": {"a": 1, "b": 1}}}


def test_climbing_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch)
    subject = Subject("op", "key", {"a": (1, 2, 4)}, lambda: [[costs.call]])
    found = climb(subject, torch.device("cpu"), Deadline(-1.0), 1)
    assert found.parameters == {"a": 1, "b": 1}
    assert found.tried == 1
