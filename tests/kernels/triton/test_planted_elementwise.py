"""Errors planted in the elementwise kernels and in the kernels that build the inputs of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


def _rope(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "attention.rope_and_store", "rope_and_store", right, wrong)


def _activation(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "elementwise.activate", "activate", right, wrong)


def _gated(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "elementwise.activate_and_mul", "activate_and_mul", right, wrong)


def _step(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "step_inputs", "step_inputs", right, wrong)


def _update(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "update_block_tables", "update_block_tables", right, wrong)


# No error makes a kernel write outside of its tensors, because that would corrupt the test process.
PLANTED = (
    _rope("missing tail of a head", "in_half = columns < half\n", "in_half = columns < half - 1\n"),
    _rope("missing last head", "(heads < all_heads) & in_half", "(heads < all_heads - 1) & in_half"),
    _rope("rotated in the other direction", "low32 * cos - high32 * sin", "low32 * cos + high32 * sin"),
    _rope("cosine read as sine", "tl.load(angle + turned,", "tl.load(angle,"),
    _rope("angle of the row number", "tl.load(positions_ptr + row) * ROTARY_DIM", "row * ROTARY_DIM"),
    _rope(
        "pairs from the halves of the whole head",
        "columns + turned, columns + half)",
        "columns + half, columns + half)",
    ),
    _rope(
        "first half of the rest used twice",
        "columns + turned, columns + half)",
        "columns + turned, columns + turned)",
    ),
    _rope(
        "too many columns rotated",
        "sin = tl.load(angle + turned, mask=columns < turned",
        "sin = tl.load(angle + turned, mask=in_half",
    ),
    _rope("values are rotated", "low = tl.where(is_value, low32,", "low = tl.where(False, low32,"),
    _rope("values are normalised", "low = tl.where(is_value, low,", "low = tl.where(False, low,"),
    _rope(
        "keys normalised by the queries' norm",
        "tl.where(is_query, q_low, k_low)",
        "tl.where(True, q_low, k_low)",
    ),
    _rope("norm of half a head", "low32 * low32 + high32 * high32", "2 * low32 * low32"),
    _rope("norm without its eps", "tl.rsqrt(mean + eps)", "tl.rsqrt(mean + 0.01)"),
    _rope("another head's plane", "(heads - NUM_HEADS).to", "(all_heads - 1 - heads).to"),
    _rope("the neighbour's slot", "(plane * num_slots + slot)", "(plane * num_slots + (slot ^ 1))"),
    _rope(
        "padding is stored",
        "slot = tl.load(slot_mapping_ptr + row)",
        "slot = tl.maximum(tl.load(slot_mapping_ptr + row), 0)",
    ),
    PlantedError(
        "missing tail",
        "elementwise.layer_norm",
        "layer_norms",
        "inside = columns < HIDDEN",
        "inside = columns < HIDDEN - 1",
    ),
    PlantedError(
        "mean not subtracted", "elementwise.layer_norm", "layer_norms", "inside, x32 - mean,", "inside, x32,"
    ),
    PlantedError(
        "padding in the variance",
        "elementwise.layer_norm",
        "layer_norms",
        "tl.where(inside, x32 - mean, 0.0)",
        "x32 - mean",
    ),
    PlantedError(
        "second affine is the first",
        "elementwise.layer_norm",
        "layer_norms",
        "(normed, weight2_ptr, bias2_ptr",
        "(normed, weight_ptr, bias_ptr",
    ),
    PlantedError(
        "second bias missing",
        "elementwise.layer_norm",
        "layer_norms",
        "weight2_ptr, bias2_ptr, columns,",
        "weight2_ptr, None, columns,",
    ),
    PlantedError(
        "second bias is the first",
        "elementwise.layer_norm",
        "layer_norms",
        "weight2_ptr, bias2_ptr, columns,",
        "weight2_ptr, bias_ptr, columns,",
    ),
    PlantedError(
        "residual not added",
        "elementwise.layer_norm",
        "add_layer_norms",
        "ADDS=residual is not None",
        "ADDS=False",
    ),
    PlantedError(
        "the sum is not kept",
        "elementwise.norm_rows",
        "add_layer_norms",
        "tl.store(residual_ptr + first + columns, x",
        "tl.store(residual_ptr + first + columns, 0 * x",
        between=("elementwise.layer_norm",),
    ),
    _gated("missing tail", "inside = columns < width", "inside = columns < width - 1"),
    _gated("row too short", "row * 2 * width", "row * width"),
    _gated("gate read as up", "tl.load(source + width,", "tl.load(source,"),
    _gated("gate and up swapped", "activated(gate, KIND) * up", "activated(up, KIND) * gate"),
    _gated("silu for every kind", "gate_up, out, width, KIND=kind", 'gate_up, out, width, KIND="silu"'),
    _activation("missing tail", "inside = places < count", "inside = places < count - 1"),
    _activation("no square root", "0.7071067811865476", "0.5"),
    _activation("erf instead of tanh", 'KIND == "gelu":', 'KIND in ("gelu", "gelu_tanh"):'),
    _activation("sigmoid of half the argument", "1.5957691216057308", "0.7978845608028654"),
    _activation("sigmoid alone", "y = x * _sigmoid(x)", "y = _sigmoid(x)"),
    _activation("negative treated as positive", "x < 0, small, 1.0", "x < 0, 1.0, 1.0"),
    _activation("quick_gelu computed as silu", "_sigmoid(1.702 * x)", "_sigmoid(x)"),
    _activation("negative not clamped", "tl.where(x < 0, 0.0, x)", "x"),
    _activation("not squared", "y = y * y", "y = y"),
    _step("wrong page", "position // BLOCK_SIZE", "position // BLOCK_SIZE + 1"),
    _step("slot in 32 bits", "mask=real, other=0).to(tl.int64)\n    slot", "mask=real, other=0)\n    slot"),
    _step(
        "sequence number as table row",
        "block_tables_ptr + places",
        "block_tables_ptr + places - table_row + seq",
    ),
    _step("position from the step's start", "start + i - first_row, 0)", "start + i, 0)"),
    _step("padding has a token", "token_ids_ptr + i, mask=real,", "token_ids_ptr + i, mask=is_row,"),
    _step("padding has a position", "tl.where(real, start + i - first_row, 0)", "start + i - first_row"),
    _step("padding has a slot", "tl.where(real, slot, -1)", "slot"),
    _step("token is not fed back", "tl.where(is_sampled, sampled, token)", "token"),
    _step("another row's token", "last_tokens_ptr + table_row", "last_tokens_ptr + seq"),
    _step(
        "padding has a length",
        "tl.where(start >= 0, start + next_row - first_row, 0)",
        "next_row - first_row",
    ),
    _step("missing last row", "is_row = i < num_rows", "is_row = i < num_rows - 1"),
    _step("missing last sequence", "is_seq = i < num_seqs", "is_seq = i < num_seqs - 1"),
    _step("grid sized by rows only", "cdiv(max(num_rows, num_seqs), _BLOCK)", "cdiv(num_rows, _BLOCK)"),
    _update(
        "padding is written",
        "row * max_blocks + column, block, mask=row >= 0)",
        "tl.maximum(row, 0) * max_blocks + column, block, mask=inside)",
    ),
    _update("missing tail", "inside = i < num_updates", "inside = i < num_updates - 1"),
    _update("one program too few", "cdiv(num_updates, _BLOCK)", "num_updates // _BLOCK"),
    _update("row number as column", "row * max_blocks + column,", "row * max_blocks + row,"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
