"""Truncation by top_k, top_p and min_p: find the smallest logit that may be drawn, by bisection without sorting.

The number of logits above a value, and their probability, decrease as the value grows. So the k-th largest logit, and
the last one of a nucleus, are the largest values at which count or probability still reach the target. Bisection over
integer keys in the order of floating-point numbers finds the value exactly, in at most 32 steps (16 for bf16, 19 for
fp16).

A step over a whole vocabulary takes some microseconds, so the few logits that matter are collected first. Each of 4096
lanes keeps its largest logit. The edge among these is at or below the edge of the row, and few other logits are above
it. So a row is read three to five times, and each step reads 4096 logits. Steps read the whole row only if the row is
so flat that more logits remain, or that the lanes' largest logits do not reach the target.
"""

from __future__ import annotations

from functools import partial

import torch

from lmi_kernels._triton import jit, tl, uses_triton
from lmi_kernels.cpu.sampling import logit_thresholds_native
from lmi_kernels.cpu.team import shared_team
from lmi_kernels.sampling.logit_order import key_of, nth_equal, value_of
from lmi_kernels.sampling.penalties import Penalties, load_logits, penalize, penalties_of
from lmi_kernels.sampling.random_numbers import EXACT
from lmi_kernels.sampling.truncate_logits_cpu import NO_LAST_ID, logit_thresholds_cpu

_LANES = 4096
_LOW_ZEROS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""Number of low bits that are zero in fp32 numbers converted from each dtype. They are not searched."""


def logit_thresholds(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    penalties: Penalties | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find each row's edge. The truncations apply in this order, to the probabilities of logits / temperature:

    - top_k keeps the k largest logits and all that equal the k-th.
    - top_p keeps the smallest number of likeliest tokens with a share p of the remaining probability. Of equal logits
      it keeps the lowest ids.
    - min_p keeps tokens with at least min_p times the probability of the likeliest.

    The result is exact except for rounding: the nucleus is that of a p within 1e-5 of the given one (sums in fp32, of
    exponentials of fp32 differences), and min_p's edge is rounded to fp32. Logits that are equal only after division by
    the temperature do not count as equal. A row's result does not depend on the batch.

    Args:
        logits: [num_rows, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed; vocab_size below 2**24.
        temperature: [num_rows], any float dtype; 0: the row is greedy.
        top_k: [num_rows], any integer dtype; 0, or at least the size of the vocabulary: off.
        top_p: [num_rows], any float dtype, above 0; 1: off.
        min_p: [num_rows], any float dtype; 0: off.
        penalties: applied to the logits first; None: no row has penalties.

    Returns: the smallest logit that may be drawn, [num_rows], fp32, and the largest token id that may be drawn among
        logits equal to it, [num_rows], int32. Rows with everything off, greedy rows and rows that are not finite have
        -inf and any id.
    """
    if not uses_triton(logits):
        team = shared_team()
        call = partial(logit_thresholds_native, team) if team else logit_thresholds_cpu
        return call(penalize(logits, penalties), temperature, top_k, top_p, min_p)
    rows, vocab = logits.shape
    kept = torch.empty(rows, _LANES, dtype=torch.float32, device=logits.device)
    thresholds = torch.empty(rows, dtype=torch.float32, device=logits.device)
    last_ids = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _thresholds_kernel[(rows,)](
        logits,
        logits.stride(0),
        vocab,
        temperature,
        top_k,
        top_p,
        min_p,
        *(penalties or (None, None, None, None)),
        kept,
        thresholds,
        last_ids,
        NO_LAST_ID=NO_LAST_ID,
        LOW_ZEROS=_LOW_ZEROS[logits.dtype],
        LANES=_LANES,
        HAS_PENALTIES=penalties is not None,
        num_warps=16,
        **EXACT,
    )
    return thresholds, last_ids


@jit
def _load(row_ptr, penalties, kept_ptr, from_kept, places, vocab, LANES: tl.constexpr):
    """Load logits of the row, or of the few that were kept."""
    if from_kept:
        x = tl.load(kept_ptr + places, mask=places < LANES, other=float("-inf"))
    else:
        x = load_logits(row_ptr, penalties, places, vocab)
    return x


@jit
def _amount(row_ptr, penalties, kept_ptr, from_kept, vocab, edge, largest, rate, LANES: tl.constexpr):
    """Sum exp((x - largest) * rate) over logits that are at least `edge`. A rate of 0 counts them, exactly below 2**24.

    The sum never increases with the edge, because rounding is monotonic and the order of additions is fixed.
    """
    lanes = tl.arange(0, LANES)
    total = tl.full((LANES,), 0.0, tl.float32)
    for start in tl.range(0, LANES if from_kept else vocab, LANES, loop_unroll_factor=4):
        x = _load(row_ptr, penalties, kept_ptr, from_kept, start + lanes, vocab, LANES)
        # Smaller logits have no probability. The limit avoids -inf times a rate of 0, which would be NaN.
        below = tl.maximum(x - largest, -1e8)
        total += tl.where(x >= edge, tl.exp(below * rate), 0.0)
    return tl.sum(total)


@jit
def _at_edge(row_ptr, penalties, kept_ptr, from_kept, vocab, edge, largest, rate, LANES: tl.constexpr):
    """Return the sum of `_amount` over logits above `edge`, and the number of logits equal to it."""
    lanes = tl.arange(0, LANES)
    total = tl.full((LANES,), 0.0, tl.float32)
    equal = tl.full((LANES,), 0, tl.int32)
    for start in tl.range(0, LANES if from_kept else vocab, LANES, loop_unroll_factor=4):
        x = _load(row_ptr, penalties, kept_ptr, from_kept, start + lanes, vocab, LANES)
        total += tl.where(x > edge, tl.exp((x - largest) * rate), 0.0)
        equal += (x == edge).to(tl.int32)
    return tl.sum(total), tl.sum(equal)


@jit
def _search(
    row_ptr,
    penalties,
    kept_ptr,
    from_kept,
    vocab,
    low,
    high,
    target,
    largest,
    rate,
    LOW_ZEROS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Return the largest key with an amount that reaches the target. `low` must reach it, and `high` must not."""
    while low + 1 < high:
        middle = (low & high) + ((low ^ high) >> 1)
        edge = value_of(middle, LOW_ZEROS)
        amount = _amount(row_ptr, penalties, kept_ptr, from_kept, vocab, edge, largest, rate, LANES)
        low = tl.where(amount >= target, middle, low)
        high = tl.where(amount >= target, high, middle)
    return low


@jit
def _keep_lanes(row_ptr, penalties, vocab, kept_ptr, LANES: tl.constexpr):
    """Write each lane's largest logit. Return the largest of all, or +inf if there is a NaN."""
    lanes = tl.arange(0, LANES)
    largest = tl.full((LANES,), float("-inf"), tl.float32)
    for start in tl.range(0, vocab, LANES, loop_unroll_factor=4):
        x = load_logits(row_ptr, penalties, start + lanes, vocab)
        largest = tl.maximum(largest, tl.where(x != x, float("inf"), x))
    tl.store(kept_ptr + lanes, largest)
    tl.debug_barrier()
    return tl.max(largest)


@jit
def _keep_from(row_ptr, penalties, vocab, edge, kept_ptr, LANES: tl.constexpr):
    """Compact the logits that are at least `edge`, followed by -inf, if there are at most LANES. Return their number.

    Each lane first counts its own logits, so that one cumulative sum gives each lane its place.
    """
    lanes = tl.arange(0, LANES)
    counts = tl.zeros((LANES,), tl.int32)
    for start in tl.range(0, vocab, LANES, loop_unroll_factor=4):
        counts += (load_logits(row_ptr, penalties, start + lanes, vocab) >= edge).to(tl.int32)
    num_kept = tl.sum(counts)
    if num_kept <= LANES:
        places = tl.cumsum(counts, 0) - counts
        # Wait until all threads have read what was kept before.
        tl.debug_barrier()
        tl.store(kept_ptr + lanes, tl.full((LANES,), float("-inf"), tl.float32))
        tl.debug_barrier()
        for start in tl.range(0, vocab, LANES, loop_unroll_factor=4):
            x = load_logits(row_ptr, penalties, start + lanes, vocab)
            stays = x >= edge
            tl.store(kept_ptr + places, x, mask=stays)
            places += stays.to(tl.int32)
        tl.debug_barrier()
    return num_kept


@jit
def _threshold(
    row_ptr,
    penalties,
    vocab,
    kept_ptr,
    temperature,
    top_k,
    top_p,
    min_p,
    NO_LAST_ID: tl.constexpr,
    LOW_ZEROS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Return a row's threshold and last id. kept_ptr: [LANES], buffer for the row's largest logits."""
    largest = _keep_lanes(row_ptr, penalties, vocab, kept_ptr, LANES)
    # With a smaller temperature the rate would overflow.
    rate = 1.0 / tl.maximum(temperature, 1e-30)
    by_rank = (top_k > 0) & (top_k < vocab)
    by_mass = top_p < 1.0
    edge = tl.full((), float("-inf"), tl.float32)
    relative = tl.full((), float("-inf"), tl.float32)
    last_id = tl.full((), NO_LAST_ID, tl.int32)
    finite = (largest < float("inf")) & (largest > float("-inf"))
    if finite & (by_rank | by_mass):
        # A rate of 0 makes `_amount` count.
        target = top_k.to(tl.float32)
        first_rate = 0.0
        # fmt: off
        if not by_rank:
            target = top_p * _amount(row_ptr, penalties, kept_ptr, False, vocab, edge, largest, rate, LANES)
            first_rate = rate
        # Find a lower bound of the edge. 16 bits are enough for it.
        low, high = key_of(edge, 16), key_of(largest, 16) + 1
        low = _search(
            row_ptr, penalties, kept_ptr, True, vocab, low, high, target, largest, first_rate, 16, LANES
        )
        bound = value_of(low, 16)
        num_kept = tl.full((), LANES + 1, tl.int32)
        if bound > edge:
            num_kept = _keep_from(row_ptr, penalties, vocab, bound, kept_ptr, LANES)
        few = num_kept <= LANES
        low, high = key_of(bound, LOW_ZEROS), key_of(largest, LOW_ZEROS) + 1
        low = _search(
            row_ptr, penalties, kept_ptr, few, vocab, low, high, target, largest, first_rate, LOW_ZEROS, LANES
        )
        edge = value_of(low, LOW_ZEROS)
        if by_mass:
            if by_rank:
                target = top_p * _amount(row_ptr, penalties, kept_ptr, few, vocab, edge, largest, rate, LANES)
                low = _search(
                    row_ptr, penalties, kept_ptr, few, vocab, low, high, target, largest, rate, LOW_ZEROS, LANES
                )
                edge = value_of(low, LOW_ZEROS)
            above, num_equal = _at_edge(
                row_ptr, penalties, kept_ptr, few, vocab, edge, largest, rate, LANES
            )
            # fmt: on
            missing = target - above
            weight = tl.exp((edge - largest) * rate)
            # Logits of weight 0 are never drawn, so it does not matter how many are kept.
            if (weight > 0.0) & (missing <= (num_equal - 1.0) * weight):
                nth = tl.maximum(tl.ceil(missing / weight), 1.0).to(tl.int32)
                last_id = nth_equal(row_ptr, penalties, vocab, edge, nth, NO_LAST_ID, LANES)
    if finite & (min_p > 0.0):
        # Rounded once.
        relative = tl.fma(temperature, tl.log(tl.maximum(min_p, 1e-37)), largest)
    return tl.maximum(edge, relative), tl.where(relative > edge, NO_LAST_ID, last_id)


# One compiled variant for all batch sizes. These pointers are read one number at a time, so alignment does not matter.
@jit(
    do_not_specialize_on_alignment=[
        *(
            "temperature_ptr",
            "top_k_ptr",
            "top_p_ptr",
            "min_p_ptr",
            "table_rows_ptr",
            "enabled_ptr",
            "values_ptr",
        )
    ]
)
def _thresholds_kernel(
    logits_ptr,
    row_stride,
    vocab,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    counts_ptr,
    table_rows_ptr,
    enabled_ptr,
    values_ptr,
    kept_ptr,
    threshold_ptr,
    last_id_ptr,
    NO_LAST_ID: tl.constexpr,
    LOW_ZEROS: tl.constexpr,
    LANES: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
):
    """Find one row's threshold and last id. A row without truncation gets -inf and NO_LAST_ID."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(threshold_ptr + row, float("-inf"))
    tl.store(last_id_ptr + row, NO_LAST_ID)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    top_k = tl.load(top_k_ptr + row).to(tl.int32)
    top_p = tl.load(top_p_ptr + row).to(tl.float32)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    if (temperature == 0.0) | ~((top_k > 0) & (top_k < vocab) | (top_p < 1.0) | (min_p > 0.0)):
        return
    row_ptr = logits_ptr + row * row_stride
    kept_ptr += row * LANES
    if tl.load(enabled_ptr + row) != 0 if HAS_PENALTIES else False:
        # Penalized logits have all bits of fp32.
        penalties = penalties_of(row, vocab, counts_ptr, table_rows_ptr, values_ptr)
        threshold, last_id = _threshold(
            row_ptr, penalties, vocab, kept_ptr, temperature, top_k, top_p, min_p, NO_LAST_ID, 0, LANES
        )
    else:
        threshold, last_id = _threshold(
            row_ptr, None, vocab, kept_ptr, temperature, top_k, top_p, min_p, NO_LAST_ID, LOW_ZEROS, LANES
        )
    tl.store(threshold_ptr + row, threshold)
    tl.store(last_id_ptr + row, last_id)
