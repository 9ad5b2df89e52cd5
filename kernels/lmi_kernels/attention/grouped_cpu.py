"""Attention on a CPU whose results have the same bits however a step is put together.

A query's result must not depend on its neighbours, on how its prompt was cut into chunks, nor on where its keys lie.
MKL gives a row of a product bits that do depend on the product's shape, but only in a few ways, each measured over
head dimensions 2 to 256 and avoided here:

- rows: 1 to 3, and with several threads the last one to three of a few more, go through other kernels. Rows are
  padded to a multiple of 4.
- columns: fewer than 16 go through other kernels. There are at least `MIN_KEYS` keys, the hidden ones included.
- tiny products are not MKL's but torch's own, below 400 multiplications. Rows are padded beyond that.
- long sums are cut at places that depend on their length. Values are weighed in tiles of `KEY_TILE` keys, counted
  from a sequence's first, and the tiles are added in order; by MKL itself where it is seen to cut there.

Hidden keys behind the last visible one then change nothing: their weight is exactly 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lmi_kernels.attention.grouped_plan import KEY_TILE, MIN_KEYS, QUERY_TILE

_ROWS = 4
_SMALLEST_PRODUCT = 400
"""Multiplications below which torch takes a loop of its own instead of MKL."""

_LONG = 2 * KEY_TILE
"""Keys from which on MKL cuts sums in the same places, whatever their length."""


def cuts_long_sums() -> bool:
    """Whether this machine's matmul library cuts a sum over `_LONG` keys or more into tiles of `KEY_TILE` by itself,
    so that one call gives the bits of one a tile. Tried on random numbers, in less than a millisecond.
    """
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 2 * _ROWS, 1000, generator=generator)
    values = torch.randn(2, 1000, 64, generator=generator)
    return all(
        torch.equal(torch.bmm(w, v), _sum_in_tiles(w, v))
        for w, v in ((weights[:, :, :keys], values[:, :keys]) for keys in (_LONG, 400, 560, 1000))
    )


def attend_singles(
    q: torch.Tensor,
    keys_values: torch.Tensor,
    mask: torch.Tensor | None,
    long_sums: bool,
    out: torch.Tensor,
) -> None:
    """One query token a sequence.

    Args:
        q: [num_seqs, num_kv_heads, share, head_dim].
        keys_values: [2, num_seqs, num_kv_heads, kv_len, head_dim], q's dtype.
        mask: [num_seqs, 1, 1, kv_len], fp32, added to the scores; or None.
        long_sums: what `cuts_long_sums` said.
        out: as q, written.
    """
    num_seqs, kv_heads, share, head_dim = q.shape
    rows = max(_rounded_up(share), _fewest_rows(head_dim))
    scaled = _scaled(q, (num_seqs, kv_heads, rows, head_dim))
    keys_values = keys_values.float()
    if num_seqs == 1 or keys_values.is_contiguous():
        keys, values = keys_values.flatten(1, 2)
        if mask is not None:
            mask = mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)
        scores = _scores(scaled.flatten(0, 1), keys, mask)
        results = _weigh(scores, values, long_sums).view(scaled.shape)
        out.copy_(results[:, :, :share])
        return
    # In a view of the pool sequences and heads are no common dimension.
    for head in range(kv_heads):
        keys, values = keys_values[:, :, head]
        scores = _scores(scaled[:, head], keys, None if mask is None else mask[:, 0])
        out[:, head] = _weigh(scores, values, long_sums)[:, :share]


def attend_chunk(
    q: torch.Tensor,
    keys_values: torch.Tensor,
    first_position: int,
    mask: torch.Tensor | None,
    long_sums: bool,
    out: torch.Tensor,
) -> None:
    """Consecutive query tokens of one sequence, `QUERY_TILE` at a time, each tile over the keys up to its last token.

    Args:
        q: [query_len, num_kv_heads, share, head_dim].
        keys_values: [2, num_kv_heads, kv_len, head_dim], q's dtype.
        first_position: of the first query.
        mask: [t, 1, t + MIN_KEYS], fp32: what the first t queries, at most a tile, see of the keys from
            `first_position` on.
        long_sums: what `cuts_long_sums` said.
        out: as q, written.

    Raises:
        ValueError: no mask.
    """
    if mask is None:
        raise ValueError("a chunk's group on a CPU has a mask")
    query_len, kv_heads, share, head_dim = q.shape
    keys, values = keys_values.float()
    for start in range(0, query_len, QUERY_TILE):
        queries = q[start : start + QUERY_TILE].transpose(0, 1)
        tokens = queries.shape[1]
        padded = max(_rounded_up(tokens), _fewest_rows(head_dim))
        scaled = _scaled(queries, (kv_heads, padded, share, head_dim))
        position = first_position + start
        # The plan made kv_len such that no tile of keys is too small; multiples of MIN_KEYS never make one.
        visible = min(keys.shape[1], -(-(position + tokens) // MIN_KEYS) * MIN_KEYS)
        scores = _scores(scaled.flatten(1, 2), keys[:, :visible], None)
        by_token = scores.view(kv_heads, padded, share, visible)[:, :tokens, :, position:]
        by_token += mask[:tokens, :, : visible - position]
        results = _weigh(scores, values[:, :visible], long_sums).view(scaled.shape)
        out[start : start + QUERY_TILE].copy_(results[:, :tokens].transpose(0, 1))


def _rounded_up(rows: int) -> int:
    return -(-rows // _ROWS) * _ROWS


def _fewest_rows(head_dim: int) -> int:
    return _rounded_up(-(-_SMALLEST_PRODUCT // (MIN_KEYS * head_dim)))


def _scaled(q: torch.Tensor, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """q / sqrt(head_dim) in fp32, padded with zeros to `shape`, contiguous.

    Queries and not scores are scaled: a product's own factor is rounded in with its first partial sum.
    """
    scale: float = shape[-1] ** -0.5
    if q.shape == shape:
        return (q.float() * scale).contiguous()
    missing = (0, 0, 0, shape[2] - q.shape[2], 0, shape[1] - q.shape[1])
    padded: torch.Tensor = F.pad(q.float(), missing)
    return padded.mul_(scale).contiguous()


def _scores(q: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """q: [batch, rows, head_dim], scaled; keys: [batch, kv_len, head_dim]; mask: [batch, 1, kv_len] or None
    -> [batch, rows, kv_len].
    """
    if mask is None:
        return torch.bmm(q, keys.transpose(1, 2))
    return torch.baddbmm(mask, q, keys.transpose(1, 2))


def _weigh(scores: torch.Tensor, values: torch.Tensor, long_sums: bool) -> torch.Tensor:
    """scores: [batch, rows, kv_len]; values: [batch, kv_len, head_dim] -> [batch, rows, head_dim]."""
    weights = scores.softmax(dim=-1)
    kv_len = values.shape[1]
    if kv_len <= KEY_TILE or (long_sums and kv_len >= _LONG):
        return torch.bmm(weights, values)
    return _sum_in_tiles(weights, values)


def _sum_in_tiles(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    sums = torch.bmm(weights[:, :, :KEY_TILE], values[:, :KEY_TILE])
    for start in range(KEY_TILE, values.shape[1], KEY_TILE):
        sums.baddbmm_(weights[:, :, start : start + KEY_TILE], values[:, start : start + KEY_TILE])
    return sums
