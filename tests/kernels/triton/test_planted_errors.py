"""Errors planted in the kernels. The comparison with the reference must catch each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

# No error makes a kernel write outside of its tensors, because that would corrupt the test process.
_PLANTED: dict[tuple[str, ...], dict[str, tuple[str, str]]] = {
    ("elementwise.rms_norm", "rms_norm"): {
        "missing tail": ("inside = columns < HIDDEN", "inside = columns < HIDDEN - 1"),
    },
    ("elementwise.norm_rows", "add_rms_norm", "elementwise.rms_norm"): {
        "the sum is not kept": ("residual_ptr + first + columns, x", "residual_ptr + first + columns, 0 * x"),
    },
    ("attention.rope_and_store", "rope_and_store"): {
        "missing tail of a head": ("in_half = columns < half\n", "in_half = columns < half - 1\n"),
        "missing last head": ("(heads < all_heads) & in_half", "(heads < all_heads - 1) & in_half"),
        "rotated in the other direction": ("low32 * cos - high32 * sin", "low32 * cos + high32 * sin"),
        "cosine read as sine": ("tl.load(angle + turned,", "tl.load(angle,"),
        "angle of the row number": ("tl.load(positions_ptr + row) * ROTARY_DIM", "row * ROTARY_DIM"),
        "pairs from the halves of the whole head": ("+ turned, columns + half)", "+ half, columns + half)"),
        "first half of the rest used twice": ("+ turned, columns + half)", "+ turned, columns + turned)"),
        "too many columns rotated": ("angle + turned, mask=columns < turned", "angle + turned, mask=in_half"),
        "values are rotated": ("low = tl.where(is_value, low32,", "low = tl.where(False, low32,"),
        "values are normalized": ("low = tl.where(is_value, low,", "low = tl.where(False, low,"),
        "keys normalized by the queries' norm": ("(is_query, q_low, k_low)", "(True, q_low, k_low)"),
        "norm of half a head": ("low32 * low32 + high32 * high32", "2 * low32 * low32"),
        "norm without its eps": ("tl.rsqrt(mean + eps)", "tl.rsqrt(mean + 0.01)"),
        "another head's plane": ("(heads - NUM_HEADS).to", "(all_heads - 1 - heads).to"),
        "the neighbor's slot": ("(plane * num_slots + slot)", "(plane * num_slots + (slot ^ 1))"),
        "padding is stored": ("load(slot_mapping_ptr + row)", "maximum(tl.load(slot_mapping_ptr + row), 0)"),
    },
    ("elementwise.layer_norm", "layer_norms"): {
        "missing tail": ("inside = columns < HIDDEN", "inside = columns < HIDDEN - 1"),
        "mean not subtracted": ("inside, x32 - mean,", "inside, x32,"),
        "padding in the variance": ("tl.where(inside, x32 - mean, 0.0)", "x32 - mean"),
        "second affine is the first": ("(normed, weight2_ptr, bias2_ptr", "(normed, weight_ptr, bias_ptr"),
        "second bias missing": ("weight2_ptr, bias2_ptr, columns,", "weight2_ptr, None, columns,"),
        "second bias is the first": ("weight2_ptr, bias2_ptr, columns,", "weight2_ptr, bias_ptr, columns,"),
    },
    ("elementwise.layer_norm", "add_layer_norms"): {
        "residual not added": ("ADDS=residual is not None", "ADDS=False"),
    },
    ("elementwise.norm_rows", "add_layer_norms", "elementwise.layer_norm"): {
        "the sum is not kept": ("residual_ptr + first + columns, x", "residual_ptr + first + columns, 0 * x"),
    },
    ("elementwise.activate_and_mul", "activate_and_mul"): {
        "missing tail": ("inside = columns < width", "inside = columns < width - 1"),
        "row too short": ("row * 2 * width", "row * width"),
        "gate read as up": ("tl.load(source + width,", "tl.load(source,"),
        "gate and up swapped": ("activated(gate, KIND) * up", "activated(up, KIND) * gate"),
        "silu for every kind": ("gate_up, out, width, KIND=kind", 'gate_up, out, width, KIND="silu"'),
    },
    ("elementwise.activate", "activate"): {
        "missing tail": ("inside = places < count", "inside = places < count - 1"),
        "no square root": ("0.7071067811865476", "0.5"),
        "erf instead of tanh": ('KIND == "gelu":', 'KIND in ("gelu", "gelu_tanh"):'),
        "sigmoid of half the argument": ("1.5957691216057308", "0.7978845608028654"),
        "sigmoid alone": ("y = x * _sigmoid(x)", "y = _sigmoid(x)"),
        "negative treated as positive": ("x < 0, small, 1.0", "x < 0, 1.0, 1.0"),
        "quick_gelu computed as silu": ("_sigmoid(1.702 * x)", "_sigmoid(x)"),
        "negative not clamped": ("tl.where(x < 0, 0.0, x)", "x"),
        "not squared": ("y = y * y", "y = y"),
    },
    ("step_inputs", "step_inputs"): {
        "wrong page": ("position // BLOCK_SIZE", "position // BLOCK_SIZE + 1"),
        "slot in 32 bits": ("mask=real, other=0).to(tl.int64)\n    slot", "mask=real, other=0)\n    slot"),
        "sequence number as table row": ("_ptr + places", "_ptr + places - table_row + seq"),
        "position from the step's start": ("start + i - first_row, 0)", "start + i, 0)"),
        "padding has a token": ("token_ids_ptr + i, mask=real,", "token_ids_ptr + i, mask=is_row,"),
        "padding has a position": ("tl.where(real, start + i - first_row, 0)", "start + i - first_row"),
        "padding has a slot": ("tl.where(real, slot, -1)", "slot"),
        "token is not fed back": ("tl.where(is_sampled, sampled, token)", "token"),
        "another row's token": ("last_tokens_ptr + table_row", "last_tokens_ptr + seq"),
        "padding has a length": (
            "tl.where(start >= 0, start + next_row - first_row, 0)",
            "next_row - first_row",
        ),
        "missing last row": ("is_row = i < num_rows", "is_row = i < num_rows - 1"),
        "missing last sequence": ("is_seq = i < num_seqs", "is_seq = i < num_seqs - 1"),
        "grid sized by rows only": ("cdiv(max(num_rows, num_seqs), _BLOCK)", "cdiv(num_rows, _BLOCK)"),
    },
    ("update_block_tables", "update_block_tables"): {
        "padding is written": (
            "row * max_blocks + column, block, mask=row >= 0)",
            "tl.maximum(row, 0) * max_blocks + column, block, mask=inside)",
        ),
        "missing tail": ("inside = i < num_updates", "inside = i < num_updates - 1"),
        "one program too few": ("cdiv(num_updates, _BLOCK)", "num_updates // _BLOCK"),
        "row number as column": ("row * max_blocks + column,", "row * max_blocks + row,"),
    },
    ("attention.tiles", "varlen_attention", "attention.varlen"): {
        "one key too many is visible": ("<= positions[:, None]", "<= positions[:, None] + 1"),
        "next tile read from the pages of this one": ("(table_ptr, tile + BLOCK_N,", "(table_ptr, tile,"),
        "last key missing": ("(keys_at < num_keys)", "(keys_at < num_keys - 1)"),
        "unwritten slots are read": ("(keys_at >= first_key) & (keys_at < num_keys)", "keys_at >= first_key"),
        "window one too long": ("> positions[:, None] - WINDOW", ">= positions[:, None] - WINDOW"),
        "softmax of base 2": ("factor = scale * log2_e if plain", "factor = scale if plain"),
        "sinks not converted to base 2": ("sinks * 1.4426950408889634", "sinks"),
        "old sums not rescaled": ("weighted = weighted * shrink[:, None]", "weighted = weighted * 1.0"),
        "tiles within a page all start at its first slot": ("tile % BLOCK_SIZE + slots", "slots"),
    },
    ("attention.varlen", "varlen_attention"): {
        "no mask on the diagonal tile": ("(low + 1) // BLOCK_N", "(low + BLOCK_N) // BLOCK_N"),
        "no mask at the edge of the window": ("(high - WINDOW + BLOCK_N, 0)", "(low - WINDOW + 1, 0)"),
        "every head reads the first KV head": ("pool_ptr + kv_head * head_size", "pool_ptr + 0 * head_size"),
        "search ignores partial blocks": (
            "block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)",
            "block = index - tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M",
        ),
    },
    ("attention.decode_plan", "plan_decode"): {
        "the last tile is missing": ("(seq_len + (BLOCK_N - 1)) // BLOCK_N", "seq_len // BLOCK_N"),
        "the window is ignored": ("tl.maximum(seq_len - WINDOW, 0) // BLOCK_N", "0"),
        "later sequences start at 0 again": ("total + tl.cumsum(tiles, 0)", "tl.cumsum(tiles, 0)"),
        "a sequence that ends before the tile is selected": ("+ middle) > tile", "+ middle) >= tile"),
    },
    ("attention.tiles", "decode_attention", "attention.decode"): {
        "values are not masked": ("tl.load(pointers, mask=inside[:, None], other=0.0)", "tl.load(pointers)"),
    },
    ("attention.decode", "decode_attention"): {
        "pages of another sequence": ("tl.load(table_rows_ptr + seq)", "tl.load(table_rows_ptr + first_seq)"),
        "missing tail": ("stop = start + (end - begin) * BLOCK_N", "stop = seq_len // BLOCK_N * BLOCK_N"),
        "wrong split bound": ("tl.minimum(seq_end, (program + 1)", "tl.minimum(seq_end, program"),
        "a part is treated as a whole sequence": ("(begin == seq_begin) & (end", "(begin == begin) & (end"),
        "tiles before the window are read": ("first_key // BLOCK_N + begin - seq_begin", "begin - seq_begin"),
        "a sink in every part": ("& (begin == seq_begin)\n", "& (begin >= seq_begin)\n"),
        "a sink of another head": ("tl.load(sinks_ptr + head,", "tl.load(sinks_ptr + row,"),
        "one key too many is visible": ("position, slopes, keys_ptr", "position + 1, slopes, keys_ptr"),
        "heads of another KV head": ("head = kv_head * SHARE + row", "head = row"),
    },
    ("attention.combine_parts", "combine_parts"): {
        "no rescaling of parts": ("weight = tl.exp2(maxima - new_max)", "weight = tl.exp2(maxima - maxima)"),
        "no rescaling between rounds": ("acc = acc * rescale +", "acc = acc +"),
        "the last part is missing": ("(end - 1) // per_program + seq", "(end - 1) // per_program + seq - 1"),
        "padding is not zeroed": ("(tiles == 0)[:, None]", "(tiles < 0)[:, None]"),
    },
    ("linear.grouped_matmul", "gate_up_matmul"): {
        "wrong expert": ("(ends <= block)", "(ends < block)"),
        "gate and up swapped": ("sums = activated(sums, GATE) * ups", "sums = activated(ups, GATE) * sums"),
        "silu for every kind": ("activated(sums, GATE)", "sums * tl.sigmoid(sums)"),
        "wrong row": ("(choices // CHOICES_PER_ROW)", "(choices % CHOICES_PER_ROW)"),
    },
    ("linear.grouped_matmul", "down_matmul"): {
        "missing tail": ("tl.range(0, K, BLOCK_K", "tl.range(0, K // BLOCK_K * BLOCK_K, BLOCK_K"),
        "share of another choice": ("tl.load(shares_ptr + choices,", "tl.load(shares_ptr + choices // 2,"),
        "tiles skipped": ("program % a_group // group_size", "program % a_group // GROUP_M"),
    },
    ("linear.route", "route"): {
        "always renormalized": ("RENORMALIZE=renormalize", "RENORMALIZE=True"),
        "shares not renormalized": ("RENORMALIZE=renormalize", "RENORMALIZE=False"),
        "padding is a real row": ("([BLOCK_M], tl.int32) + num_rows * TOP_K", "([BLOCK_M], tl.int32)"),
        "equal logits are both selected": ("experts == tl.argmax(left, axis=", "left == tl.max(left, axis="),
        "no block for the tail": ("(counts + BLOCK_M - 1) // BLOCK_M", "counts // BLOCK_M"),
        "later rows overwrite": ("place += tl.sum(chosen)", "place += 0"),
        "padding is routed to experts": ("other=-1) >= 0)", "other=-1) >= -1)"),
    },
    ("linear.sum_choices", "sum_choices"): {
        "padding is summed": ("slots_ptr + row) >= 0", "slots_ptr + row) >= -1"),
        "last part missing": ("static_range(TOP_K)", "static_range(TOP_K - 1)"),
    },
    ("sampling.random_numbers", "gumbel_noise"): {
        "noise of the next token": ("h = tokens ^ first", "h = (tokens + 1) ^ first"),
        "rounded once instead of twice": (
            "return x + rest + whole * 0.693359375",
            "return (x.to(tl.float64) + rest + whole * 0.693359375).to(tl.float32)",
        ),
        "the upper half of positions is lost": ("position >> 32", "position >> 63"),
        "no series near 0": ("tl.where(v < 0.03125, series,", "tl.where(v < 0.0, series,"),
    },
    ("sampling.choose_tokens", "choose_tokens"): {
        "last of equal scores wins": ("better = score > best", "better = score >= best"),
        "all logits equal to the threshold are kept": (
            "== threshold) & (tokens <= last_id)",
            "== threshold)",
        ),
        "NaN not detected": ('tl.where(x != x, float("inf"), x)', 'tl.where(x != x, float("-inf"), x)'),
        "last split skipped": ("splits < num_splits", "splits < tl.maximum(num_splits - 1, 1)"),
        "penalties ignored": ("tl.load(enabled_ptr + row) != 0", "tl.load(enabled_ptr + row) > 1"),
    },
    ("sampling.penalties", "choose_tokens", "sampling.choose_tokens"): {
        "reads past the vocabulary": ("inside = tokens < vocab", "inside = tokens <= vocab"),
    },
    ("sampling.truncate_logits", "truncate_logits"): {
        "one token more than top_k": ("target = top_k.to(tl.float32)", "target = top_k.to(tl.float32) + 1.0"),
        "probability of all tokens instead of the top k": (
            "target = top_p * _amount(row_ptr, penalties, kept_ptr, few, vocab, edge,",
            'target = top_p * _amount(row_ptr, penalties, kept_ptr, False, vocab, float("-inf"),',
        ),
        "row ends too early": ("(x >= edge, tl.exp(", "((x >= edge) & (start + lanes < vocab - 1), tl.exp("),
        "logits equal to the bound are lost": ("vocab) >= edge).to(tl.int32)", "vocab) > edge).to(tl.int32)"),
        "one equal logit too many": ("ceil(missing / weight)", "ceil(missing / weight) + 1.0"),
        "no temperature in min_p": ("tl.fma(temperature, tl.log", "tl.fma(1.0, tl.log"),
        "penalties ignored": ("tl.load(enabled_ptr + row) != 0", "tl.load(enabled_ptr + row) > 1"),
    },
    ("sampling.penalties", "truncate_logits", "sampling.logit_order", "sampling.truncate_logits"): {
        "presence penalty for prompt tokens": ("(count > 0, presence, 0.0)", "(entry > 0, presence, 0.0)"),
        "negative logits divided": ("tl.where(x < 0.0, x * repetition,", "tl.where(x < 0.0, x / repetition,"),
        "half the frequency penalty": ("count = entry >> 1\n", "count = (entry >> 1) // 2\n"),
        "wrong table row": ("tl.load(table_rows_ptr + row) * vocab", "row * vocab"),
        "repetition read as presence": ("tl.load(values_ptr + num_rows)", "tl.load(values_ptr)"),
    },
    ("sampling.count_tokens", "count_tokens"): {
        "count not bounded": ("entry < FULL", "entry < FULL + 2"),
        "disabled rows counted": ("!= 0\n    table_rows", ">= 0\n    table_rows"),
        "output counted as prompt": ("entry + 2, entry", "entry + 1, entry"),
    },
    ("sampling.token_logprobs", "token_logprobs"): {
        "reads past the vocabulary": ("mask=places < vocab", "mask=places <= vocab"),
        "sum lost at a new maximum": ("total * shrunk + 1.0", "1.0"),
        "lanes added without rescaling": ("total * tl.exp(largest - top)", "total"),
        "infinite logits treated as finite": ('< float("inf"), x, float("nan"))', '< float("inf"), x, -1.0)'),
    },
}
"""By module, check, and modules between them: what is wrong, and the source before and after."""


@pytest.mark.parametrize(
    "planted",
    [
        PlantedError(what, module, check, right, wrong, tuple(between))
        for (module, check, *between), errors in _PLANTED.items()
        for what, (right, wrong) in errors.items()
    ],
    ids=lambda planted: f"{planted.check}: {planted.what}",
)
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
