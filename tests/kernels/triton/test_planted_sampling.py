"""Errors planted in the sampling kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


def _penalty(what: str, right: str, wrong: str) -> PlantedError:
    between = ("sampling.logit_order", "sampling.truncate_logits")
    return PlantedError(what, "sampling.penalties", "truncate_logits", right, wrong, between)


PLANTED = (
    PlantedError(
        "noise of the next token",
        "sampling.random_numbers",
        "gumbel_noise",
        "h = tokens ^ first",
        "h = (tokens + 1) ^ first",
    ),
    PlantedError(
        "rounded once instead of twice",
        "sampling.random_numbers",
        "gumbel_noise",
        "return x + rest + whole * 0.693359375",
        "return (x.to(tl.float64) + rest + whole * 0.693359375).to(tl.float32)",
    ),
    PlantedError(
        "the upper half of positions is lost",
        "sampling.random_numbers",
        "gumbel_noise",
        "(position >> 32).to(tl.uint32)",
        "(position >> 63).to(tl.uint32)",
    ),
    PlantedError(
        "no series near 0",
        "sampling.random_numbers",
        "gumbel_noise",
        "tl.where(v < 0.03125, series, ",
        "tl.where(v < 0.0, series, ",
    ),
    PlantedError(
        "last of equal scores wins",
        "sampling.choose_tokens",
        "choose_tokens",
        "better = score > best",
        "better = score >= best",
    ),
    PlantedError(
        "reads past the vocabulary",
        "sampling.penalties",
        "choose_tokens",
        "inside = tokens < vocab",
        "inside = tokens <= vocab",
        between=("sampling.choose_tokens",),
    ),
    PlantedError(
        "all logits equal to the threshold are kept",
        "sampling.choose_tokens",
        "choose_tokens",
        "(x == threshold) & (tokens <= last_id)",
        "(x == threshold)",
    ),
    PlantedError(
        "NaN not detected",
        "sampling.choose_tokens",
        "choose_tokens",
        'tl.where(x != x, float("inf"), x)',
        'tl.where(x != x, float("-inf"), x)',
    ),
    PlantedError(
        "last split skipped",
        "sampling.choose_tokens",
        "choose_tokens",
        "inside = splits < num_splits",
        "inside = splits < tl.maximum(num_splits - 1, 1)",
    ),
    PlantedError(
        "one token more than top_k",
        "sampling.truncate_logits",
        "truncate_logits",
        "target = top_k.to(tl.float32)",
        "target = top_k.to(tl.float32) + 1.0",
    ),
    PlantedError(
        "probability of all tokens instead of the top k",
        "sampling.truncate_logits",
        "truncate_logits",
        "target = top_p * _amount(row_ptr, penalties, kept_ptr, few, vocab, edge,",
        'target = top_p * _amount(row_ptr, penalties, kept_ptr, False, vocab, float("-inf"),',
    ),
    PlantedError(
        "row ends too early",
        "sampling.truncate_logits",
        "truncate_logits",
        "tl.where(x >= edge, tl.exp(below * rate), 0.0)",
        "tl.where((x >= edge) & (start + lanes < vocab - 1), tl.exp(below * rate), 0.0)",
    ),
    PlantedError(
        "logits equal to the bound are lost",
        "sampling.truncate_logits",
        "truncate_logits",
        "start + lanes, vocab) >= edge).to(tl.int32)",
        "start + lanes, vocab) > edge).to(tl.int32)",
    ),
    PlantedError(
        "one equal logit too many",
        "sampling.truncate_logits",
        "truncate_logits",
        "tl.ceil(missing / weight), 1.0)",
        "tl.ceil(missing / weight) + 1.0, 1.0)",
    ),
    PlantedError(
        "no temperature in min_p",
        "sampling.truncate_logits",
        "truncate_logits",
        "tl.fma(temperature, tl.log",
        "tl.fma(1.0, tl.log",
    ),
    PlantedError(
        "penalties ignored",
        "sampling.choose_tokens",
        "choose_tokens",
        "tl.load(enabled_ptr + row) != 0",
        "tl.load(enabled_ptr + row) > 1",
    ),
    PlantedError(
        "penalties ignored",
        "sampling.truncate_logits",
        "truncate_logits",
        "tl.load(enabled_ptr + row) != 0",
        "tl.load(enabled_ptr + row) > 1",
    ),
    _penalty(
        "presence penalty for prompt tokens",
        "tl.where(count > 0, presence, 0.0)",
        "tl.where(entry > 0, presence, 0.0)",
    ),
    _penalty(
        "negative logits divided", "tl.where(x < 0.0, x * repetition, ", "tl.where(x < 0.0, x / repetition, "
    ),
    _penalty("half the frequency penalty", "count = entry >> 1\n    ", "count = (entry >> 1) // 2\n    "),
    _penalty("wrong table row", "tl.load(table_rows_ptr + row) * vocab", "row * vocab"),
    _penalty("repetition read as presence", "tl.load(values_ptr + num_rows)", "tl.load(values_ptr)"),
    PlantedError(
        "count not bounded", "sampling.count_tokens", "count_tokens", "entry < FULL", "entry < FULL + 2"
    ),
    PlantedError(
        "disabled rows counted",
        "sampling.count_tokens",
        "count_tokens",
        "!= 0\n    table_rows",
        ">= 0\n    table_rows",
    ),
    PlantedError(
        "output counted as prompt",
        "sampling.count_tokens",
        "count_tokens",
        "entry + 2, entry",
        "entry + 1, entry",
    ),
    PlantedError(
        "reads past the vocabulary",
        "sampling.token_logprobs",
        "token_logprobs",
        "mask=places < vocab",
        "mask=places <= vocab",
    ),
    PlantedError(
        "sum lost at a new maximum",
        "sampling.token_logprobs",
        "token_logprobs",
        "total * shrunk + 1.0",
        "1.0",
    ),
    PlantedError(
        "lanes added without rescaling",
        "sampling.token_logprobs",
        "token_logprobs",
        "total * tl.exp(largest - top)",
        "total",
    ),
    PlantedError(
        "infinite logits treated as finite",
        "sampling.token_logprobs",
        "token_logprobs",
        'tl.where(x < float("inf"), x, float("nan"))',
        'tl.where(x < float("inf"), x, -1.0)',
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
