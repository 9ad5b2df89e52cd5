"""The sampling operations, natively: rows of logits where they lie, and columns of numbers, one a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lmi_kernels.cpu.structs import Choose, Logprobs, Step, Struct, Truncate
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.sampling.likeliest import TokenLogprobs

_SLACK = 64
"""`kSlack` of `native.h`."""


def logit_thresholds_native(
    team: Team,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `logit_thresholds`; sums are of whole numbers, in units of 2**-40 of the likeliest token's probability."""
    x, (num_rows, vocab_size) = logits.to(torch.float32), logits.shape
    thresholds, last_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int32)
    _run(
        team,
        Truncate,
        _row_addresses(x, penalized, penalizes),
        vocab_size=vocab_size,
        temperature=_column(temperature, torch.float32),
        top_k=_column(top_k, torch.int64),
        top_p=_column(top_p, torch.float64),
        min_p=_column(min_p, torch.float64),
        thresholds=thresholds,
        last_ids=last_ids,
        scratch=_scratch(team, vocab_size),
    )
    return thresholds, last_ids


def choose_tokens_native(
    team: Team,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `choose_tokens`: the same tokens."""
    x, (num_rows, vocab_size) = logits.to(torch.float32), logits.shape
    tokens, finite = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.bool)
    _run(
        team,
        Choose,
        _row_addresses(x, penalized, penalizes),
        vocab_size=vocab_size,
        temperature=_column(temperature, torch.float32),
        thresholds=_column(thresholds, torch.float32),
        last_ids=_column(last_ids, torch.int32),
        seeds=_column(seeds, torch.int64),
        positions=_column(positions, torch.int64),
        tokens=tokens,
        finite=finite,
    )
    return tokens, finite


def row_logprobs_native(
    team: Team, logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, counts: Sequence[int]
) -> tuple[list[float], list[TokenLogprobs]]:
    """As `row_logprobs`."""
    x, vocab_size, most = logits.to(torch.float32), logits.shape[1], max(counts)
    logprobs = torch.empty(len(rows))
    top_tokens, top_logprobs = torch.empty(len(rows), most, dtype=torch.int64), torch.empty(len(rows), most)
    _run(
        team,
        Logprobs,
        _addresses(x)[_column(rows, torch.int64)],
        vocab_size=vocab_size,
        tokens=_column(tokens, torch.int64),
        counts=_column(counts, torch.int64),
        logprobs=logprobs,
        top_tokens=top_tokens,
        top_logprobs=top_logprobs,
        top_stride=most,
        scratch=_scratch(team, vocab_size),
    )
    tops = [
        tuple(pair for pair in zip(ids[:count], values[:count], strict=True) if pair[1] > -math.inf)
        for count, ids, values in zip(counts, top_tokens.tolist(), top_logprobs.tolist(), strict=True)
    ]
    return logprobs.tolist(), tops


def _run(team: Team, kind: type[Struct], rows: torch.Tensor, **fields: torch.Tensor | int) -> None:
    """An operation over rows: [num_rows], int64, where their logits begin."""
    addresses = {
        name: value.data_ptr() if isinstance(value, torch.Tensor) else value for name, value in fields.items()
    }
    team.run(Program([kind(rows=rows.data_ptr(), **addresses)]), Step(num_rows=len(rows)))


def _column(values: torch.Tensor | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """One value a row, as the library reads them, whatever they are: it sees addresses and cannot check."""
    return torch.as_tensor(values, dtype=dtype).contiguous()


def _row_addresses(x: torch.Tensor, penalized: torch.Tensor, penalizes: torch.Tensor) -> torch.Tensor:
    """Where the rows of x begin, or those of `penalized` where `penalizes`."""
    rows = _addresses(x)
    return _addresses(penalized).where(penalizes != 0, rows) if penalizes.any() else rows


def _addresses(rows: torch.Tensor) -> torch.Tensor:
    """Where each row begins: [num_rows], int64. rows: fp32, each contiguous."""
    each = rows.stride(0) * rows.element_size()
    return torch.arange(len(rows)).mul_(each).add_(rows.data_ptr())


def _scratch(team: Team, vocab_size: int) -> torch.Tensor:
    return team.scratch(2 * (vocab_size + _SLACK))
