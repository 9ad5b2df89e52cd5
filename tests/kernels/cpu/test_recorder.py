"""A recorded program computes what the same calls compute on tensors, in few operations and few buffers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lmi_kernels import (
    activate,
    add_layer_norms,
    add_rms_norm,
    embedding,
    layer_norms,
    linear,
    rms_norm,
    scale,
    softcap,
)
from lmi_kernels.cpu import shared_team
from lmi_kernels.cpu.binding import Recording, bind
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.recorder import NotRecorded, Recorder, Rows
from lmi_kernels.cpu.structs import OpKind, Step
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight
from tests.support.seeds import fresh_generator

_WIDTH, _VOCABULARY, _MOST = 50, 90, 40
_EPS = 1e-5


class _Parts:
    """Weights of a small model, and rows of it."""

    def __init__(self, library: Library, team: Team) -> None:
        self._generator = fresh_generator()
        self._library = library
        self.recorder = Recorder(team, _MOST)
        self.table = self.normal(_VOCABULARY, _WIDTH)
        self.ids = torch.randint(0, _VOCABULARY, (_MOST,), generator=self._generator, dtype=torch.int32)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)

    def native(self, weight: torch.Tensor) -> LinearWeight:
        return LinearWeight(None, None, None, NativeWeight(self._library, weight))

    def embedded(self) -> Rows:
        rows = embedding(self.recorder.ids(), self.native(self.table))
        assert isinstance(rows, Rows)
        return rows

    def run(self, result: torch.Tensor, num_rows: int = 7) -> torch.Tensor:
        assert isinstance(result, Rows)
        recording = bind(self.recorder, result)
        found: torch.Tensor = recording.run(Step(num_rows=num_rows, ids=self.ids.data_ptr()))
        return found


@pytest.fixture
def parts(library: Library, team: Team) -> _Parts:
    return _Parts(library, team)


def _kinds(recording: Recording) -> list[OpKind]:
    return [
        OpKind(op.kind)
        for part in recording._parts
        if isinstance(part, Program)
        for op in part.ops[: part.num_ops]
    ]


def test_operations_on_rows_are_those_on_tensors(parts: _Parts) -> None:
    affine = parts.normal(_WIDTH), parts.normal(_WIDTH)
    weight = parts.normal(_WIDTH)
    first = rms_norm(parts.embedded(), weight, _EPS)
    second = layer_norms(parts.embedded(), [affine], _EPS)[0]
    found = parts.run(activate(first, "gelu") + second)
    x = parts.table[parts.ids[:7]].double()
    normed = x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight
    expected = F.gelu(normed) + F.layer_norm(x, (_WIDTH,), affine[0].double(), affine[1].double(), _EPS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_ids_of_other_ranks_give_zeros(parts: _Parts) -> None:
    rows = parts.recorder.embedding(
        parts.recorder.ids(), NativeWeight(parts._library, parts.table[30:60]), first_id=30
    )
    found = parts.run(rows, _MOST)
    mine = (parts.ids >= 30) & (parts.ids < 60)
    expected = torch.where(mine[:, None], parts.table[parts.ids], 0.0)
    assert torch.equal(found, expected)


def test_a_linear_adds_to_the_residual_stream_by_itself(parts: _Parts) -> None:
    weight, norm = parts.normal(_WIDTH, _WIDTH), torch.ones(_WIDTH)
    stream = parts.embedded()
    branch = linear(rms_norm(stream, norm, _EPS), parts.native(weight))
    normed, total = add_rms_norm(branch, stream, norm, _EPS)
    assert isinstance(normed, Rows)
    recording = bind(parts.recorder, normed)
    assert _kinds(recording) == [OpKind.EMBED, OpKind.NORM, OpKind.LINEAR, OpKind.NORM]
    x = parts.table[parts.ids[:9]]
    expected = rms_norm(x + rms_norm(x, norm, _EPS) @ weight.T, norm, _EPS)
    found = recording.run(Step(num_rows=9, ids=parts.ids.data_ptr()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert isinstance(total, Rows)


def test_a_product_that_is_read_twice_is_not_added_in_place(parts: _Parts) -> None:
    weight = parts.normal(_WIDTH, _WIDTH)
    stream = parts.embedded()
    product = linear(stream, parts.native(weight))
    recording_kinds = bind(parts.recorder, (stream + product) + product)
    assert _kinds(recording_kinds).count(OpKind.ADD) == 2
    found = recording_kinds.run(Step(num_rows=5, ids=parts.ids.data_ptr()))
    x = parts.table[parts.ids[:5]]
    torch.testing.assert_close(found, x + 2 * (x @ weight.T), rtol=1e-4, atol=1e-4)


def test_a_stream_that_is_read_later_is_not_overwritten(parts: _Parts) -> None:
    affine = parts.normal(_WIDTH), parts.normal(_WIDTH)
    weight = parts.normal(_WIDTH, _WIDTH)
    stream = parts.embedded()
    product = linear(stream, parts.native(weight))
    (normed,), total = add_layer_norms(product, stream, [affine], _EPS)
    found = parts.run(normed + total + stream)
    x = parts.table[parts.ids[:7]]
    expected = F.layer_norm(x + x @ weight.T, (_WIDTH,), *affine, _EPS) + 2 * x + x @ weight.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _num_buffers(recording: Recording) -> int:
    buffers = {
        part.data_ptr()
        for program in recording._parts
        if isinstance(program, Program)
        for part in program._keep_alive[1]
        if isinstance(part, torch.Tensor) and len(part) == _MOST
    }
    return len(buffers)


def test_layers_share_buffers(parts: _Parts) -> None:
    weight = parts.native(parts.normal(_WIDTH, _WIDTH))
    x = parts.embedded()
    for _ in range(10):
        x = linear(linear(x, weight), weight)
    assert isinstance(x, Rows)
    assert _num_buffers(bind(parts.recorder, x)) == 3, "two that take turns, and the result's"


def test_operations_on_single_numbers_need_no_buffer_of_their_own(parts: _Parts) -> None:
    head = parts.native(parts.normal(80, _WIDTH))
    logits = softcap(scale(activate(linear(parts.embedded(), head), "relu"), 3.0), 5.0)
    assert isinstance(logits, Rows)
    recording = bind(parts.recorder, logits)
    assert _num_buffers(recording) == 2, "the embedding's and the logits'"


def test_rows_that_are_added_to_themselves_free_one_buffer(parts: _Parts) -> None:
    norm, same = torch.ones(_WIDTH), parts.native(torch.eye(_WIDTH))
    stream = parts.embedded()
    product = linear(stream, same)
    twice = product + product
    first, second = linear(twice, same), linear(stream, same)
    found = parts.run(rms_norm(first, norm, _EPS) + (second + twice))
    x = parts.table[parts.ids[:7]]
    torch.testing.assert_close(found, rms_norm(2 * x, norm, _EPS) + 3 * x, rtol=1e-4, atol=1e-4)


def test_positions_are_looked_up_like_ids(parts: _Parts) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")  # then a plain table is not packed
    table = parts.normal(30, _WIDTH)
    positions = torch.arange(_MOST, dtype=torch.int32) * 7 % 31
    recorder = parts.recorder
    total = parts.embedded() + embedding(recorder.positions(), parts.native(table))
    total = total + embedding(recorder.positions(), table)
    assert isinstance(total, Rows)
    step = Step(num_rows=_MOST, ids=parts.ids.data_ptr(), positions=positions.data_ptr())
    found = bind(recorder, total).run(step)
    known = torch.cat((table, torch.zeros(1, _WIDTH)))  # what the table lacks is 0
    torch.testing.assert_close(found, parts.table[parts.ids] + 2 * known[positions], rtol=1e-6, atol=1e-6)


def test_nothing_else_is_looked_up(parts: _Parts) -> None:
    with pytest.raises(NotRecorded, match="neither token ids nor positions"):
        embedding(parts.embedded(), parts.native(parts.table))


@pytest.mark.parametrize("count", [1, 2])
def test_layer_norm_without_a_bias(parts: _Parts, count: int) -> None:
    weights = [parts.normal(_WIDTH) for _ in range(count)]
    normed = layer_norms(parts.embedded(), [(weight, None) for weight in weights], _EPS)
    found = parts.run(normed[0] + normed[-1])
    wide = parts.table[parts.ids[:7]].double()
    first, last = (F.layer_norm(wide, (_WIDTH,), weights[i].double(), None, _EPS) for i in (0, -1))
    torch.testing.assert_close(found.double(), first + last, rtol=1e-5, atol=1e-5)


def test_what_is_done_outside_stands_between_native_operations(parts: _Parts) -> None:
    def double(rows: torch.Tensor) -> None:
        rows *= 2

    stream = parts.recorder.call_python(parts.embedded(), double)
    parts.recorder.end_with(lambda rows: rows.sum())
    found = parts.run(stream + stream, 6)
    assert float(found) == pytest.approx(
        float(4 * parts.table[parts.ids[:6]].double().sum()), rel=1e-4, abs=1e-3
    )


def test_what_no_native_operation_does_is_not_recorded(parts: _Parts) -> None:
    rows = parts.embedded()
    with pytest.raises(NotRecorded, match="relu"):
        torch.relu(rows)
    with pytest.raises(NotRecorded, match="something else"):
        rows + 1.0
    with pytest.raises(NotRecorded):
        rows * 2
