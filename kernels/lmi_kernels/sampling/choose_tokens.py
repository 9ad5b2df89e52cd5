"""Choose each row's next token: the likeliest, or one drawn in proportion to exp(logit / temperature) by the Gumbel-max
trick (argmax of logit / temperature + Gumbel noise; Maddison et al. 2014, arXiv:1411.0030). This needs no softmax, sum
or sort.

The chosen token does not depend on the batch, on the split of the vocabulary among programs, or on the device. The
order of an argmax does not matter, the noise depends only on seed, position and token and has the same bits everywhere
(`random_numbers.py`), and a score is one product and one sum, each rounded to fp32.
"""

from __future__ import annotations

from functools import partial

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.cpu.sampling import choose_tokens_native
from lmi_kernels.cpu.team import shared_team
from lmi_kernels.sampling.choose_tokens_cpu import choose_tokens_cpu
from lmi_kernels.sampling.penalties import Penalties, load_logits, penalize, penalties_of
from lmi_kernels.sampling.random_numbers import EXACT, gumbel, row_keys_of

_SPAN = 1024
_GROUP = 4 * _SPAN
_MAX_SPLITS = 64
_PROGRAMS_PER_MULTIPROCESSOR = 4


def choose_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    penalties: Penalties | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the likeliest token (the lowest id of equal ones) in rows with temperature 0, and draw one in other rows.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed. -inf is never chosen.
        temperature: [num_rows], any float dtype. Below 1e-6 of the logits' magnitude the noise is lost in rounding, and
            the choice is practically greedy.
        thresholds: [num_rows], fp32, see `logit_thresholds`. Smaller logits are not drawn. Greedy rows ignore it.
        last_ids: [num_rows], int32: logits equal to the threshold are drawn only up to this token id.
        seeds: [num_rows], int64. All 64 bits are used.
        positions: [num_rows], int64: position of the chosen token in its sequence.
        penalties: applied to the logits first; None: no row has penalties.

    Returns: token ids, [num_rows], int64, and whether each row is finite, [num_rows], bool. A row with NaN or +inf, or
        with only -inf, is not finite, and its token is 0.
    """
    if not uses_triton(logits):
        team = shared_team()
        call = partial(choose_tokens_native, team) if team else choose_tokens_cpu
        return call(penalize(logits, penalties), temperature, thresholds, last_ids, seeds, positions)
    rows, vocab = logits.shape
    groups = cdiv(vocab, _GROUP)
    programs = _PROGRAMS_PER_MULTIPROCESSOR * tuning.num_multiprocessors(logits.device)
    groups_per_split = cdiv(groups, min(_MAX_SPLITS, groups, cdiv(programs, rows)))
    num_splits = cdiv(groups, groups_per_split)
    scores = torch.empty(rows, num_splits, dtype=torch.float32, device=logits.device)
    tokens = torch.empty_like(scores, dtype=torch.int32)
    largest = torch.empty_like(scores)
    _choose_kernel[(rows, num_splits)](
        logits,
        logits.stride(0),
        vocab,
        temperature,
        thresholds,
        last_ids,
        seeds,
        positions,
        *(penalties or (None, None, None, None)),
        scores,
        tokens,
        largest,
        groups_per_split,
        HAS_PENALTIES=penalties is not None,
        SPAN=_SPAN,
        num_warps=4,
        **EXACT,
    )
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(rows, dtype=torch.bool, device=logits.device)
    _combine_kernel[(rows,)](
        scores, tokens, largest, chosen, finite, num_splits, MAX_SPLITS=_MAX_SPLITS, num_warps=2
    )
    return chosen, finite


@jit
def _better(best, best_tokens, largest, x, tokens, threshold, last_id, noise):
    """Update each lane's best score, its token and the largest logit. NaN counts as +inf."""
    largest = tl.maximum(largest, tl.where(x != x, float("inf"), x))
    allowed = (x > threshold) | ((x == threshold) & (tokens <= last_id))
    score = tl.where(allowed, x + noise, float("-inf"))
    # The first of equal scores wins. A lane sees its tokens in ascending order.
    better = score > best
    return tl.where(better, score, best), tl.where(better, tokens, best_tokens), largest


@jit
def _best(
    row_ptr,
    penalties,
    vocab,
    first,
    last,
    temperature,
    threshold,
    last_id,
    seed,
    position,
    SPAN: tl.constexpr,
):
    """Return each lane's best score, its token and the largest logit, over the groups [first, last) of one row."""
    lanes = tl.arange(0, SPAN)
    best = tl.full((SPAN,), float("-inf"), tl.float32)
    best_tokens = tl.zeros((SPAN,), tl.int32)
    largest = tl.full((SPAN,), float("-inf"), tl.float32)
    if temperature != 0.0:
        a, b, c, d = row_keys_of(seed, position)
        for group in range(first, last):
            for part in tl.static_range(4):
                tokens = (group * 4 + part) * SPAN + lanes
                # Same argmax as logit / t + noise, but without overflow for small t.
                noise = temperature * gumbel(tokens, a, b, c, d)
                x = load_logits(row_ptr, penalties, tokens, vocab)
                best, best_tokens, largest = _better(
                    best, best_tokens, largest, x, tokens, threshold, last_id, noise
                )
    else:
        for group in range(first, last):
            for part in tl.static_range(4):
                tokens = (group * 4 + part) * SPAN + lanes
                x = load_logits(row_ptr, penalties, tokens, vocab)
                best, best_tokens, largest = _better(
                    best, best_tokens, largest, x, tokens, float("-inf"), 0, 0.0
                )
    return best, best_tokens, largest


# One compiled variant for all batch sizes. Pointers are read one number at a time; `groups_per_split` is only a count.
@jit(
    do_not_specialize=["groups_per_split"],
    do_not_specialize_on_alignment=[
        *("temperature_ptr", "seed_ptr", "position_ptr", "table_rows_ptr", "enabled_ptr", "values_ptr")
    ],
)
def _choose_kernel(
    logits_ptr,
    row_stride,
    vocab,
    temperature_ptr,
    threshold_ptr,
    last_id_ptr,
    seed_ptr,
    position_ptr,
    counts_ptr,
    table_rows_ptr,
    enabled_ptr,
    values_ptr,
    score_ptr,
    token_ptr,
    largest_ptr,
    groups_per_split,
    HAS_PENALTIES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Find the best token of one split of one row, four spans of tokens at a time."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    threshold, last_id = tl.load(threshold_ptr + row), tl.load(last_id_ptr + row)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    first = split * groups_per_split
    last = tl.minimum(first + groups_per_split, tl.cdiv(vocab, 4 * SPAN))
    row_ptr = logits_ptr + row * row_stride
    # Rows with penalties have a separate loop, because a branch at each load would slow down all rows.
    if tl.load(enabled_ptr + row) != 0 if HAS_PENALTIES else False:
        penalties = penalties_of(row, vocab, counts_ptr, table_rows_ptr, values_ptr)
        best, best_tokens, largest = _best(
            row_ptr, penalties, vocab, first, last, temperature, threshold, last_id, seed, position, SPAN
        )
    else:
        best, best_tokens, largest = _best(
            row_ptr, None, vocab, first, last, temperature, threshold, last_id, seed, position, SPAN
        )
    top = tl.max(best)
    place = row * tl.num_programs(1) + split
    tl.store(score_ptr + place, top)
    tl.store(token_ptr + place, tl.min(tl.where(best == top, best_tokens, 0x7FFFFFFF)))
    tl.store(largest_ptr + place, tl.max(largest))


@jit(do_not_specialize=["num_splits"])
def _combine_kernel(
    score_ptr, token_ptr, largest_ptr, chosen_ptr, finite_ptr, num_splits, MAX_SPLITS: tl.constexpr
):
    """Find the best token among a row's splits."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, MAX_SPLITS)
    inside = splits < num_splits
    places = row * num_splits + splits
    scores = tl.load(score_ptr + places, mask=inside, other=float("-inf"))
    tokens = tl.load(token_ptr + places, mask=inside, other=0x7FFFFFFF)
    largest = tl.max(tl.load(largest_ptr + places, mask=inside, other=float("-inf")))
    top = tl.max(scores)
    finite = (largest < float("inf")) & (top > float("-inf"))
    token = tl.min(tl.where(scores == top, tokens, 0x7FFFFFFF)).to(tl.int64)
    tl.store(chosen_ptr + row, tl.where(finite, token, 0))
    tl.store(finite_ptr + row, finite)
