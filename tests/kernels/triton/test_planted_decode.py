"""Errors planted in decode attention: in its plan, tiles and combination."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


def _plan(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "attention.decode_plan", "plan_decode", right, wrong)


def _tiles(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "attention.decode", "decode_attention", right, wrong)


def _combine(what: str, right: str, wrong: str) -> PlantedError:
    return PlantedError(what, "attention.combine_parts", "combine_parts", right, wrong)


PLANTED = (
    _plan("the last tile is missing", "(seq_len + (BLOCK_N - 1)) // BLOCK_N", "seq_len // BLOCK_N"),
    _plan("the window is ignored", "tl.maximum(seq_len - WINDOW, 0) // BLOCK_N", "0"),
    _plan("later sequences start at 0 again", "total + tl.cumsum(tiles, 0)", "tl.cumsum(tiles, 0)"),
    _plan("a sequence that ends before the tile is selected", "+ middle) > tile", "+ middle) >= tile"),
    PlantedError(
        "values are not masked",
        "attention.tiles",
        "decode_attention",
        "tile = tl.load(pointers, mask=inside[:, None], other=0.0)",
        "tile = tl.load(pointers)",
        between=("attention.decode",),
    ),
    _tiles(
        "pages of another sequence", "tl.load(table_rows_ptr + seq)", "tl.load(table_rows_ptr + first_seq)"
    ),
    _tiles("missing tail", "stop = start + (end - begin) * BLOCK_N", "stop = seq_len // BLOCK_N * BLOCK_N"),
    _tiles("wrong split bound", "tl.minimum(seq_end, (program + 1)", "tl.minimum(seq_end, program"),
    _tiles("a part is treated as a whole sequence", "(begin == seq_begin) & (end", "(begin == begin) & (end"),
    _tiles(
        "tiles before the window are read",
        "(first_key // BLOCK_N + begin - seq_begin)",
        "(begin - seq_begin)",
    ),
    _tiles("a sink in every part", "& (begin == seq_begin)\n", "& (begin >= seq_begin)\n"),
    _tiles("a sink of another head", "tl.load(sinks_ptr + head,", "tl.load(sinks_ptr + row,"),
    _tiles("one key too many is visible", "position, slopes, keys_ptr", "position + 1, slopes, keys_ptr"),
    _tiles("heads of another KV head", "head = kv_head * SHARE + row", "head = row"),
    _combine(
        "no rescaling of parts", "weight = tl.exp2(maxima - new_max)", "weight = tl.exp2(maxima - maxima)"
    ),
    _combine("no rescaling between rounds", "acc = acc * rescale +", "acc = acc +"),
    _combine(
        "the last part is missing",
        "last_slot = (end - 1) // per_program + seq",
        "last_slot = (end - 1) // per_program + seq - 1",
    ),
    _combine("padding is not zeroed", "(tiles == 0)[:, None]", "(tiles < 0)[:, None]"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
