"""The measuring tools themselves, and what the machine with the GPU need not have."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.gpu import sweep
from tests.gpu.parts import aws
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
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from tests.gpu import chapters, one_kernel, one_part
from tests.gpu.plan import PARTS
for module in sorted({part.module for part in PARTS.values()} - set(sys.argv[2].split(","))):
    importlib.import_module(f"tests.gpu.parts.{module}")
"""


@pytest.mark.parametrize(
    ("absent", "but"),
    [(_ABSENT, ""), ((*_ABSENT, "transformers", "mpi4py", "pytest"), "engine")],
    ids=["without the web stack", "our own without the peer"],
)
def test_parts_import_what_they_need_and_no_more(absent: tuple[str, ...], but: str) -> None:
    """But for those whose oracle it is, no part needs transformers."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, ",".join(absent), but],
        cwd=REPO_ROOT,
        env=child_environment({"PYTHONPATH": f"{REPO_ROOT}:{REPO_ROOT / 'kernels'}"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_posts_table_is_that_of_lmi_compare() -> None:
    compare = pytest.importorskip("container.compare.aws_post")
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
    assert aws.SCENARIOS == compare._SHAPES


def test_gaps_are_what_no_activity_covers() -> None:
    # 0 to 10 with another inside, a short gap, 12 to 20, a long one, 40 to 50.
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


def test_the_median_and_its_spread() -> None:
    assert Timing.of([3.0, 1.0, 2.0, 9.0, 2.5]) == Timing(2.5, 1.0, 9.0)


class Costs:
    """A kernel whose time is known for each way to launch it."""

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
        # With b = 3 it would be as fast, and is wrong.
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
