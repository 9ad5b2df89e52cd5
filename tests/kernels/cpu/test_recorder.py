"""Recorded programs give the results of the same calls on tensors, with few operations and buffers."""

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
from lmi_kernels.cpu.recorder import NotRecorded, Recorder, Rows
from lmi_kernels.cpu.structs import OpKind, Step
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight
from tests.support.seeds import fresh_generator

_WIDTH, _VOCABULARY, _MAX_ROWS = 50, 90, 40
_EPS = 1e-5


class _Model:
    """Weights of a small model, and a recorder of its operations."""

    def __init__(self, team: Team) -> None:
        self._generator = fresh_generator()
        self.team = team
        self.recorder = Recorder(team, _MAX_ROWS)
        self.table = self.normal(_VOCABULARY, _WIDTH)
        self.ids = torch.randint(0, _VOCABULARY, (_MAX_ROWS,), generator=self._generator, dtype=torch.int32)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)

    def native(self, weight: torch.Tensor) -> LinearWeight:
        return LinearWeight(None, None, None, NativeWeight(self.team, weight))

    def embedded(self) -> Rows:
        rows = embedding(self.recorder.ids, self.native(self.table))
        assert isinstance(rows, Rows)
        return rows

    def run(self, result: torch.Tensor, num_rows: int = 7) -> torch.Tensor:
        assert isinstance(result, Rows)
        recording = bind(self.recorder, result)
        found: torch.Tensor = recording.run(Step(num_rows=num_rows, ids=self.ids.data_ptr()))
        return found


@pytest.fixture
def model(team: Team) -> _Model:
    return _Model(team)


def _kinds(recording: Recording) -> list[OpKind]:
    return [OpKind(op.kind) for op in recording._program.ops]


def test_recorded_operations_equal_those_on_tensors(model: _Model) -> None:
    affine = model.normal(_WIDTH), model.normal(_WIDTH)
    weight = model.normal(_WIDTH)
    first = rms_norm(model.embedded(), weight, _EPS)
    second = layer_norms(model.embedded(), [affine], _EPS)[0]
    found = model.run(activate(first, "gelu") + second)
    x = model.table[model.ids[:7]].double()
    normed = x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight
    expected = F.gelu(normed) + F.layer_norm(x, (_WIDTH,), affine[0].double(), affine[1].double(), _EPS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_ids_of_other_ranks_give_zeros(model: _Model) -> None:
    rows = model.recorder.embedding(
        model.recorder.ids, NativeWeight(model.team, model.table[30:60]), first_id=30
    )
    found = model.run(rows, _MAX_ROWS)
    own = (model.ids >= 30) & (model.ids < 60)
    expected = torch.where(own[:, None], model.table[model.ids], 0.0)
    assert torch.equal(found, expected)


def test_a_linear_is_fused_with_the_residual_add(model: _Model) -> None:
    weight, norm = model.normal(_WIDTH, _WIDTH), torch.ones(_WIDTH)
    stream = model.embedded()
    branch = linear(rms_norm(stream, norm, _EPS), model.native(weight))
    normed, total = add_rms_norm(branch, stream, norm, _EPS)
    assert isinstance(normed, Rows)
    recording = bind(model.recorder, normed)
    assert _kinds(recording) == [OpKind.EMBED, OpKind.NORM, OpKind.LINEAR, OpKind.NORM]
    x = model.table[model.ids[:9]]
    expected = rms_norm(x + rms_norm(x, norm, _EPS) @ weight.T, norm, _EPS)
    found = recording.run(Step(num_rows=9, ids=model.ids.data_ptr()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert isinstance(total, Rows)


def test_a_product_that_is_read_twice_is_not_added_in_place(model: _Model) -> None:
    weight = model.normal(_WIDTH, _WIDTH)
    stream = model.embedded()
    product = linear(stream, model.native(weight))
    recording = bind(model.recorder, (stream + product) + product)
    assert _kinds(recording).count(OpKind.ADD) == 2
    found = recording.run(Step(num_rows=5, ids=model.ids.data_ptr()))
    x = model.table[model.ids[:5]]
    torch.testing.assert_close(found, x + 2 * (x @ weight.T), rtol=1e-4, atol=1e-4)


def test_a_stream_that_is_read_later_is_not_overwritten(model: _Model) -> None:
    affine = model.normal(_WIDTH), model.normal(_WIDTH)
    weight = model.normal(_WIDTH, _WIDTH)
    stream = model.embedded()
    product = linear(stream, model.native(weight))
    (normed,), total = add_layer_norms(product, stream, [affine], _EPS)
    found = model.run(normed + total + stream)
    x = model.table[model.ids[:7]]
    expected = F.layer_norm(x + x @ weight.T, (_WIDTH,), *affine, _EPS) + 2 * x + x @ weight.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _num_buffers(recording: Recording) -> int:
    return len({op.y for op in recording._program._keep_alive[0]})


def test_layers_share_buffers(model: _Model) -> None:
    weight = model.native(model.normal(_WIDTH, _WIDTH))
    x = model.embedded()
    for _ in range(10):
        x = linear(linear(x, weight), weight)
    assert isinstance(x, Rows)
    assert _num_buffers(bind(model.recorder, x)) == 3, "two that alternate, and the result's"


def test_elementwise_operations_work_in_place(model: _Model) -> None:
    head = model.native(model.normal(80, _WIDTH))
    logits = softcap(scale(activate(linear(model.embedded(), head), "relu"), 3.0), 5.0)
    assert isinstance(logits, Rows)
    recording = bind(model.recorder, logits)
    assert _num_buffers(recording) == 2, "the embedding's and the logits'"


def test_rows_added_to_themselves_free_their_buffer_once(model: _Model) -> None:
    norm, same = torch.ones(_WIDTH), model.native(torch.eye(_WIDTH))
    stream = model.embedded()
    product = linear(stream, same)
    twice = product + product
    first, second = linear(twice, same), linear(stream, same)
    found = model.run(rms_norm(first, norm, _EPS) + (second + twice))
    x = model.table[model.ids[:7]]
    torch.testing.assert_close(found, rms_norm(2 * x, norm, _EPS) + 3 * x, rtol=1e-4, atol=1e-4)


def test_positions_are_looked_up_like_ids(model: _Model) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")  # without them a plain table is not packed
    table = model.normal(30, _WIDTH)
    positions = torch.arange(_MAX_ROWS, dtype=torch.int32) * 7 % 31
    recorder = model.recorder
    total = model.embedded() + embedding(recorder.positions, model.native(table))
    total = total + embedding(recorder.positions, table)
    assert isinstance(total, Rows)
    step = Step(num_rows=_MAX_ROWS, ids=model.ids.data_ptr(), positions=positions.data_ptr())
    found = bind(recorder, total).run(step)
    known = torch.cat((table, torch.zeros(1, _WIDTH)))  # positions outside the table give 0
    torch.testing.assert_close(found, model.table[model.ids] + 2 * known[positions], rtol=1e-6, atol=1e-6)


def test_lookups_of_anything_else_are_not_recorded(model: _Model) -> None:
    with pytest.raises(NotRecorded, match="neither token ids nor positions"):
        embedding(model.embedded(), model.native(model.table))


@pytest.mark.parametrize("count", [1, 2])
def test_layer_norm_without_a_bias(model: _Model, count: int) -> None:
    weights = [model.normal(_WIDTH) for _ in range(count)]
    normed = layer_norms(model.embedded(), [(weight, None) for weight in weights], _EPS)
    found = model.run(normed[0] + normed[-1])
    wide = model.table[model.ids[:7]].double()
    first, last = (F.layer_norm(wide, (_WIDTH,), weights[i].double(), None, _EPS) for i in (0, -1))
    torch.testing.assert_close(found.double(), first + last, rtol=1e-5, atol=1e-5)


def test_selected_rows_are_computed_to_the_end(model: _Model) -> None:
    weight, places = model.normal(_WIDTH, _WIDTH), torch.tensor([6, 0, 4], dtype=torch.int32)
    stream = model.embedded()
    branch = activate(stream, "relu")
    residual = stream[model.recorder.places]
    product = linear(branch[model.recorder.places], model.native(weight))
    total = product + residual
    assert isinstance(total, Rows)
    recording = bind(model.recorder, total)
    assert _kinds(recording).count(OpKind.ADD) == 0
    step = Step(num_rows=7, ids=model.ids.data_ptr(), places=places.data_ptr(), num_places=len(places))
    found = recording.run(step)
    x = model.table[model.ids[places]]
    torch.testing.assert_close(found, x + x.relu() @ weight.T, rtol=1e-4, atol=1e-4)


def test_selected_rows_are_not_mixed_with_all_rows(model: _Model) -> None:
    rows = model.embedded()
    selected = rows[model.recorder.places]
    for wrong in (lambda: rows + selected, lambda: selected[model.recorder.places]):
        with pytest.raises(NotRecorded, match="needs all rows"):
            wrong()
    with pytest.raises(NotRecorded, match="an index other than"):
        rows[0]


def test_operations_without_a_native_kernel_are_not_recorded(model: _Model) -> None:
    rows = model.embedded()
    with pytest.raises(NotRecorded, match="relu"):
        torch.relu(rows)
    with pytest.raises(NotRecorded, match="something else"):
        rows + 1.0
    with pytest.raises(NotRecorded, match="different widths"):
        rows + linear(rows, model.native(model.normal(1, _WIDTH)))
    with pytest.raises(NotRecorded):
        rows * 2
