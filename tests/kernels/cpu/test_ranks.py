"""Operations of recorded programs that several ranks compute together. Each rank is a thread with a team of its own."""

from __future__ import annotations

from functools import reduce

import pytest
import torch

from lmi_kernels import greedy_head, linear, rms_norm
from lmi_kernels.cpu import LogitBounds
from lmi_kernels.cpu.binding import Recording, bind
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.recorder import Recorder, Rows
from lmi_kernels.cpu.structs import OpKind, Step
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight
from tests.support.seeds import fresh_generator
from tests.support.thread_ranks import ThreadCommunicator, run_ranks

_WIDTH, _VOCABULARY, _MAX_ROWS, _STEPS = 83, 60, 37, 12


class _Tables:
    """The weights of all ranks, and the ids of some steps."""

    def __init__(self, num_ranks: int) -> None:
        generator = fresh_generator()
        self.tables = torch.randn(num_ranks, _VOCABULARY, _WIDTH, generator=generator)
        self.mixing = torch.randn(num_ranks, _WIDTH, _WIDTH, generator=generator)
        sizes = torch.randint(1, _MAX_ROWS + 1, (_STEPS,), generator=generator).tolist()
        self.ids = [
            torch.randint(0, _VOCABULARY, (size,), generator=generator, dtype=torch.int32) for size in sizes
        ]


def _embedded(recorder: Recorder, table: torch.Tensor) -> Rows:
    return recorder.embedding(recorder.ids, NativeWeight(recorder.team, table), first_id=0)


def _run(recording: Recording, weights: _Tables) -> list[torch.Tensor]:
    return [recording.run(Step(num_rows=len(ids), ids=ids.data_ptr())).clone() for ids in weights.ids]


def _kinds(recording: Recording) -> list[OpKind]:
    return [OpKind(op.kind) for op in recording._program.ops]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_get_the_sum_in_the_order_of_ranks(
    library: Library, num_ranks: int, num_threads: int
) -> None:
    weights = _Tables(num_ranks)

    def rank(comm: ThreadCommunicator) -> list[torch.Tensor]:
        recorder = Recorder(Team(library, num_threads), _MAX_ROWS)
        total = recorder.all_reduce(_embedded(recorder, weights.tables[comm.rank]), comm)
        recording = bind(recorder, total)
        return _run(recording, weights)

    for results in run_ranks(num_ranks, rank):
        for ids, found in zip(weights.ids, results, strict=True):
            assert torch.equal(found, reduce(torch.add, weights.tables[:, ids.long()]))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_layer_adds_the_sum_to_its_residual_stream(library: Library, num_threads: int) -> None:
    """Ranks that go on must not overwrite rows that others still read."""
    weights, norm = _Tables(2), torch.ones(_WIDTH)
    num_layers = 6

    def rank(comm: ThreadCommunicator) -> tuple[list[OpKind], list[torch.Tensor]]:
        recorder = Recorder(Team(library, num_threads), _MAX_ROWS)
        packed = LinearWeight(None, None, None, NativeWeight(recorder.team, weights.mixing[comm.rank]))
        stream: torch.Tensor = recorder.all_reduce(_embedded(recorder, weights.tables[comm.rank]), comm)
        for _ in range(num_layers):
            part = linear(rms_norm(stream, norm, 1e-5), packed)
            assert isinstance(part, Rows)
            stream = recorder.all_reduce(part, comm) + stream
        assert isinstance(stream, Rows)
        recording = bind(recorder, stream)
        return _kinds(recording), _run(recording, weights)

    (kinds, first), (_, second) = run_ranks(2, rank)
    layer = [OpKind.NORM, OpKind.LINEAR, OpKind.ALL_REDUCE]
    assert kinds == [OpKind.EMBED, OpKind.ALL_REDUCE, *layer * num_layers]
    mixing = weights.mixing.double().sum(0)
    for ids, found, other in zip(weights.ids, first, second, strict=True):
        assert torch.equal(found, other)
        expected = weights.tables[:, ids.long()].double().sum(0)
        for _ in range(num_layers):
            expected = expected + rms_norm(expected, norm.double(), 1e-5) @ mixing.T
        torch.testing.assert_close(
            found.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )


def test_selected_rows_are_summed(library: Library) -> None:
    weights, places = _Tables(2), torch.tensor([3, 0], dtype=torch.int32)
    ids = torch.tensor([5, 9, 1, 2], dtype=torch.int32)

    def rank(comm: ThreadCommunicator) -> tuple[list[OpKind], torch.Tensor]:
        recorder = Recorder(Team(library, 1), _MAX_ROWS)
        own = _embedded(recorder, weights.tables[comm.rank])
        total = recorder.all_reduce(own, comm)
        parts = recorder.all_reduce(total[recorder.places], comm)
        result = parts + total[recorder.places]
        recording = bind(recorder, result)
        step = Step(num_rows=4, ids=ids.data_ptr(), places=places.data_ptr(), num_places=2)
        return _kinds(recording), recording.run(step).clone()

    for kinds, found in run_ranks(2, rank):
        assert kinds.count(OpKind.ADD) == 1, "the rows are selected after the all-reduce"
        total = weights.tables[:, ids[places.long()].long()].sum(0)
        assert torch.equal(found, total + total + total)


def test_rank_0_gets_the_columns_of_all_ranks(library: Library) -> None:
    weights, widths = _Tables(3), [40, 83, 1]

    def rank(comm: ThreadCommunicator) -> list[torch.Tensor]:
        recorder = Recorder(Team(library, 2), _MAX_ROWS)
        own = _embedded(recorder, weights.tables[comm.rank, :, : widths[comm.rank]].contiguous())
        return _run(bind(recorder, recorder.gather_columns(own, widths, comm)), weights)

    first, *others = run_ranks(3, rank)
    tables = torch.cat([table[:, :width] for table, width in zip(weights.tables, widths, strict=True)], dim=1)
    for ids, found in zip(weights.ids, first, strict=True):
        assert torch.equal(found, tables[ids.long()])
    assert {found.shape[1] for results in others for found in results} == {0}


class _Heads:
    """A head whose ids are split over ranks, and rows in the order of the steps."""

    def __init__(self, parts: list[torch.Tensor], rows: torch.Tensor) -> None:
        self.parts, self.rows = parts, rows
        self.widths = [2] * len(parts)

    def find(self, library: Library, exact: list[torch.Tensor], num_steps: int) -> list[torch.Tensor]:
        """Return each step's largest logits, [num_rows, 2 * ranks], from bounds of `parts` and the exact weights."""
        places = torch.arange(len(self.rows), dtype=torch.int32)

        def rank(comm: ThreadCommunicator) -> list[torch.Tensor]:
            team = Team(library, 2)
            recorder = Recorder(team, len(self.rows))
            packed = LinearWeight(None, None, None, NativeWeight(team, exact[comm.rank]))
            bounds = LogitBounds(team, self.parts[comm.rank])
            first_id = sum(map(len, self.parts[: comm.rank]))
            x = recorder.gather(self.rows, self.rows.shape[1])
            found = greedy_head(x, packed, bounds, first_id, ranks=comm)
            assert isinstance(found, Rows)
            recording = bind(recorder, recorder.gather_columns(found, self.widths, comm))
            step = Step(num_places=len(places), places=places.data_ptr())
            return [recording.run(step).clone() for _ in range(num_steps)]

        return run_ranks(len(self.parts), rank)[0]


def test_a_rank_computes_only_logits_that_may_be_the_largest_of_all_ranks(library: Library) -> None:
    generator = fresh_generator()
    parts = [torch.randn(700, 128, generator=generator) for _ in range(2)]
    rows = torch.nn.functional.normalize(torch.randn(19, 128, generator=generator), dim=1)
    parts[0][: len(rows)] = rows * 60
    heads = _Heads(parts, rows)
    (found,) = heads.find(library, [parts[0], torch.full_like(parts[1], torch.nan)], 1)
    assert found[:, 1].tolist() == list(range(len(rows)))
    assert (found[:, 2] == -torch.inf).all(), (
        "no logit of rank 1 is computed but those of its likeliest panel"
    )
    assert found[:, 3].tolist() == [0] * len(rows)


def test_ranks_of_which_some_leave_bounds_out_find_the_largest_logit(library: Library) -> None:
    """Bounds of equal columns exclude nothing, so rank 1 pauses, while rank 0 goes on."""
    generator = fresh_generator()
    rows = torch.randn(21, 128, generator=generator)
    flat = torch.randn(128, generator=generator) + torch.randn(600, 128, generator=generator) * 1e-6
    parts = [torch.randn(900, 128, generator=generator) * 0.1, flat]
    expected = (rows.double() @ torch.cat(parts).double().T).max(dim=1)
    for found in _Heads(parts, rows).find(library, parts, 40):
        logits, ids = found[:, 0::2], found[:, 1::2]
        best = logits.argmax(dim=1, keepdim=True)
        torch.testing.assert_close(
            logits.gather(1, best)[:, 0].double(), expected.values, rtol=1e-5, atol=1e-5
        )
        chosen = torch.cat(parts)[ids.gather(1, best)[:, 0].long()]
        products = (chosen.double() * rows.double()).sum(1)
        torch.testing.assert_close(products, expected.values, rtol=1e-5, atol=1e-5)
