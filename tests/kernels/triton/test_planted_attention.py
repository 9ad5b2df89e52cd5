"""Errors planted in the kernel of varlen attention and in the code that it shares with decode attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

PLANTED = (
    PlantedError(
        "one key too many is visible",
        "attention.tiles",
        "varlen_attention",
        "keys_at[None, :] <= positions[:, None]",
        "keys_at[None, :] <= positions[:, None] + 1",
    ),
    PlantedError(
        "next tile read from the pages of this one",
        "attention.tiles",
        "varlen_attention",
        "pages = _pages(table_ptr, tile + BLOCK_N,",
        "pages = _pages(table_ptr, tile,",
    ),
    PlantedError(
        "last key missing",
        "attention.tiles",
        "varlen_attention",
        "(keys_at < num_keys)",
        "(keys_at < num_keys - 1)",
    ),
    PlantedError(
        "unwritten slots are read",
        "attention.tiles",
        "varlen_attention",
        "(keys_at >= first_key) & (keys_at < num_keys)",
        "keys_at >= first_key",
    ),
    PlantedError(
        "window one too long",
        "attention.tiles",
        "varlen_attention",
        "keys_at[None, :] > positions[:, None] - WINDOW",
        "keys_at[None, :] >= positions[:, None] - WINDOW",
    ),
    PlantedError(
        "softmax of base 2",
        "attention.tiles",
        "varlen_attention",
        "factor = scale * log2_e if plain",
        "factor = scale if plain",
    ),
    PlantedError(
        "sinks not converted to base 2",
        "attention.tiles",
        "varlen_attention",
        "sinks * 1.4426950408889634",
        "sinks",
    ),
    PlantedError(
        "old sums not rescaled",
        "attention.tiles",
        "varlen_attention",
        "weighted = weighted * shrink[:, None]",
        "weighted = weighted * 1.0",
    ),
    PlantedError(
        "tiles within a page all start at its first slot",
        "attention.tiles",
        "varlen_attention",
        "places = tile % BLOCK_SIZE + slots",
        "places = slots",
    ),
    PlantedError(
        "search ignores partial blocks",
        "attention.tiles",
        "varlen_attention",
        "block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)",
        "block = index - tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M",
    ),
    PlantedError(
        "no mask on the diagonal tile",
        "attention.varlen",
        "varlen_attention",
        "closed = (low + 1) // BLOCK_N * BLOCK_N",
        "closed = (low + BLOCK_N) // BLOCK_N * BLOCK_N",
    ),
    PlantedError(
        "no mask at the edge of the window",
        "attention.varlen",
        "varlen_attention",
        "tl.maximum(high - WINDOW + BLOCK_N, 0)",
        "tl.maximum(low - WINDOW + 1, 0)",
    ),
    PlantedError(
        "every head reads the first KV head",
        "attention.varlen",
        "varlen_attention",
        "keys_ptr = pool_ptr + kv_head * head_size",
        "keys_ptr = pool_ptr + 0 * head_size",
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    between = ("attention.varlen",) if planted.module == "attention.tiles" else ()
    assert_caught(replace(planted, between=between), tmp_path)
