"""Helpers for a search among logits: map floating-point numbers to integers in the same order, and resolve ties."""

from __future__ import annotations

from lmi_kernels._triton import jit, tl
from lmi_kernels.sampling.penalties import load_logits


@jit
def key_of(value, LOW_ZEROS: tl.constexpr):
    """Return an int32 key that has the same order as the fp32 number, without its LOW_ZEROS lowest bits."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> LOW_ZEROS


@jit
def value_of(key, LOW_ZEROS: tl.constexpr):
    """Return the fp32 number of a key of `key_of`."""
    negative = ((key ^ -1) << LOW_ZEROS) | -0x80000000
    return tl.where(key >= 0, key << LOW_ZEROS, negative).to(tl.float32, bitcast=True)


@jit
def nth_equal(row_ptr, penalties, vocab, value, nth, NO_LAST_ID: tl.constexpr, LANES: tl.constexpr):
    """Return the id of the nth logit, counted from 1, that equals `value`. NO_LAST_ID if there are fewer."""
    lanes = tl.arange(0, LANES)
    seen = tl.zeros((), tl.int32)
    found = tl.full((), NO_LAST_ID, tl.int32)
    for start in range(0, vocab, LANES):
        x = load_logits(row_ptr, penalties, start + lanes, vocab)
        same = (x == value).to(tl.int32)
        total = tl.sum(same)
        if (seen < nth) & (nth <= seen + total):
            is_nth = (same == 1) & (seen + tl.cumsum(same, 0) == nth)
            found = tl.min(tl.where(is_nth, start + lanes, NO_LAST_ID))
        seen += total
    return found
