"""The checks of varlen and prefill attention see errors, wherever in the modules that they share one is planted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import lmi_kernels
from lmi_kernels._triton import INTERPRETED
from tests.support.op_parity import check_parity
from tests.support.planted import Planted
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

_MODULES = ("attention_tiles", "varlen_attention", "prefill_attention")
"""Each imports only those before it."""

PLANTED = (
    Planted(
        "sees one key too many",
        "attention_tiles",
        "varlen_attention",
        "keys_at[None, :] <= positions[:, None]",
        "keys_at[None, :] <= positions[:, None] + 1",
    ),
    Planted(
        "the next tile from this one's pages",
        "attention_tiles",
        "varlen_attention",
        "pages = _pages(table_ptr, tile + BLOCK_N,",
        "pages = _pages(table_ptr, tile,",
    ),
    Planted(
        "missing tail",
        "attention_tiles",
        "varlen_attention",
        "(keys_at < num_keys)",
        "(keys_at < num_keys - 1)",
    ),
    Planted(
        "reads what nobody wrote",
        "attention_tiles",
        "varlen_attention",
        "(keys_at >= first_key) & (keys_at < num_keys)",
        "keys_at >= first_key",
    ),
    Planted(
        "window one too long",
        "attention_tiles",
        "varlen_attention",
        "keys_at[None, :] > positions[:, None] - WINDOW",
        "keys_at[None, :] >= positions[:, None] - WINDOW",
    ),
    Planted(
        "exponentials of base 2",
        "attention_tiles",
        "prefill_attention",
        "factor = scale * log2_e if plain",
        "factor = scale if plain",
    ),
    Planted(
        "old sums not shrunk",
        "attention_tiles",
        "prefill_attention",
        "weighted = weighted * shrink[:, None]",
        "weighted = weighted * 1.0",
    ),
    Planted(
        "tiles that are part of a page all begin with it",
        "attention_tiles",
        "prefill_attention",
        "places = tile % BLOCK_SIZE + slots",
        "places = slots",
    ),
    Planted(
        "search forgets the blocks that are not full",
        "attention_tiles",
        "varlen_attention",
        "block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)",
        "block = index - tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M",
    ),
    Planted(
        "no mask on the diagonal's tile",
        "varlen_attention",
        "prefill_attention",
        "closed = (low + 1) // BLOCK_N * BLOCK_N",
        "closed = (low + BLOCK_N) // BLOCK_N * BLOCK_N",
    ),
    Planted(
        "no mask where the window cuts",
        "varlen_attention",
        "prefill_attention",
        "tl.maximum(high - WINDOW + BLOCK_N, 0)",
        "tl.maximum(low - WINDOW + 1, 0)",
    ),
    Planted(
        "every KV head is the first",
        "varlen_attention",
        "varlen_attention",
        "keys_ptr = pool_ptr + kv_head * head_size",
        "keys_ptr = pool_ptr + 0 * head_size",
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        name: (Path(lmi_kernels.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        for name in _MODULES
    }
    assert sources[planted.module].count(planted.right) == 1
    sources[planted.module] = sources[planted.module].replace(planted.right, planted.wrong)
    for name, source in sources.items():
        for imported in _MODULES:
            source = source.replace(f"from lmi_kernels.{imported} import", f"from planted_{imported} import")
        (tmp_path / f"planted_{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        checks = importlib.import_module(f"planted_{planted.check}").CHECKS
    finally:
        for name in _MODULES:
            sys.modules.pop(f"planted_{name}", None)
    # That nothing is found without the error, test_parity.py says.
    with pytest.raises(AssertionError, match=planted.check):
        check_parity(checks[0], torch.float32, fresh_generator())
