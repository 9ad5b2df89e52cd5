"""All-reduces of recorded programs. Each rank is a thread with a team of its own."""

from __future__ import annotations

from functools import reduce

import pytest
import torch

from lmi_kernels import linear, rms_norm
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
        return [recording.run(Step(num_rows=len(ids), ids=ids.data_ptr())).clone() for ids in weights.ids]

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
        results = [recording.run(Step(num_rows=len(ids), ids=ids.data_ptr())).clone() for ids in weights.ids]
        return _kinds(recording), results

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
