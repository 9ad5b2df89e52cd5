"""Errors planted in the kernel of varlen attention, and in what it shares with decode attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import Planted, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

PLANTED = (
    Planted(
        "sees one key too many",
        "attention.tiles",
        "varlen_attention",
        "keys_at[None, :] <= positions[:, None]",
        "keys_at[None, :] <= positions[:, None] + 1",
    ),
    Planted(
        "the next tile from this one's pages",
        "attention.tiles",
        "varlen_attention",
        "pages = _pages(table_ptr, tile + BLOCK_N,",
        "pages = _pages(table_ptr, tile,",
    ),
    Planted(
        "missing tail",
        "attention.tiles",
        "varlen_attention",
        "(keys_at < num_keys)",
        "(keys_at < num_keys - 1)",
    ),
    Planted(
        "reads what was not written",
        "attention.tiles",
        "varlen_attention",
        "(keys_at >= first_key) & (keys_at < num_keys)",
        "keys_at >= first_key",
    ),
    Planted(
        "window one too long",
        "attention.tiles",
        "varlen_attention",
        "keys_at[None, :] > positions[:, None] - WINDOW",
        "keys_at[None, :] >= positions[:, None] - WINDOW",
    ),
    Planted(
        "exponentials of base 2",
        "attention.tiles",
        "varlen_attention",
        "factor = scale * log2_e if plain",
        "factor = scale if plain",
    ),
    Planted(
        "sinks of base e",
        "attention.tiles",
        "varlen_attention",
        "sinks * 1.4426950408889634",
        "sinks",
    ),
    Planted(
        "old sums not shrunk",
        "attention.tiles",
        "varlen_attention",
        "weighted = weighted * shrink[:, None]",
        "weighted = weighted * 1.0",
    ),
    Planted(
        "tiles that are part of a page all begin with it",
        "attention.tiles",
        "varlen_attention",
        "places = tile % BLOCK_SIZE + slots",
        "places = slots",
    ),
    Planted(
        "search forgets the blocks that are not full",
        "attention.tiles",
        "varlen_attention",
        "block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)",
        "block = index - tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M",
    ),
    Planted(
        "no mask on the diagonal's tile",
        "attention.varlen",
        "varlen_attention",
        "closed = (low + 1) // BLOCK_N * BLOCK_N",
        "closed = (low + BLOCK_N) // BLOCK_N * BLOCK_N",
    ),
    Planted(
        "no mask where the window cuts",
        "attention.varlen",
        "varlen_attention",
        "tl.maximum(high - WINDOW + BLOCK_N, 0)",
        "tl.maximum(low - WINDOW + 1, 0)",
    ),
    Planted(
        "every KV head is the first",
        "attention.varlen",
        "varlen_attention",
        "keys_ptr = pool_ptr + kv_head * head_size",
        "keys_ptr = pool_ptr + 0 * head_size",
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: Planted, tmp_path: Path) -> None:
    between = ("attention.varlen",) if planted.module == "attention.tiles" else ()
    assert_caught(replace(planted, between=between), tmp_path)
