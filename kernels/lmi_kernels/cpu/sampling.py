"""Native sampling operations on rows of logits. Their parameters are columns with one number per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lmi_kernels.cpu.structs import Choose, Logprobs, Step, Struct, Truncate
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.sampling.likeliest import TokenLogprobs

_SLACK = 64
"""`kSlack` of `native.h`."""
_TRUNCATE_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
}
_CHOOSE_DTYPES = {
    "temperature": torch.float32,
    "thresholds": torch.float32,
    "last_ids": torch.int32,
    "seeds": torch.int64,
    "positions": torch.int64,
}


def logit_thresholds_native(
    team: Team, logits: torch.Tensor, *columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `logit_thresholds`, with the same arguments. Sums are integers in units of 2**-40 of the likeliest
    token's probability."""
    x, (num_rows, vocab_size) = logits.to(torch.float32), logits.shape
    thresholds, last_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int32)
    _run(
        team,
        Truncate,
        _addresses(x),
        vocab_size=vocab_size,
        **_typed(columns, _TRUNCATE_DTYPES),
        thresholds=thresholds,
        last_ids=last_ids,
        scratch=_scratch(team, vocab_size),
    )
    return thresholds, last_ids


def choose_tokens_native(
    team: Team, logits: torch.Tensor, *columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `choose_tokens`, with the same arguments and the same tokens."""
    x, (num_rows, vocab_size) = logits.to(torch.float32), logits.shape
    tokens, finite = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.bool)
    _run(
        team,
        Choose,
        _addresses(x),
        vocab_size=vocab_size,
        **_typed(columns, _CHOOSE_DTYPES),
        tokens=tokens,
        finite=finite,
    )
    return tokens, finite


def row_logprobs_native(
    team: Team, logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, counts: Sequence[int]
) -> tuple[list[float], list[TokenLogprobs]]:
    """Implement `row_logprobs`."""
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
    """Run an operation. rows: [num_rows], int64, the address of each row's logits."""
    addresses = {
        name: value.data_ptr() if isinstance(value, torch.Tensor) else value for name, value in fields.items()
    }
    team.run(Program([kind(rows=rows.data_ptr(), **addresses)]), Step(num_rows=len(rows)))


def _typed(columns: Sequence[torch.Tensor], dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Name columns in the order of `dtypes`, and convert them."""
    return {
        name: _column(values, dtype) for (name, dtype), values in zip(dtypes.items(), columns, strict=True)
    }


def _column(values: torch.Tensor | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return one value per row in the library's dtype. The library gets addresses and cannot check dtypes."""
    return torch.as_tensor(values, dtype=dtype).contiguous()


def _addresses(rows: torch.Tensor) -> torch.Tensor:
    """Return each row's address: [num_rows], int64. rows: fp32, each contiguous."""
    each = rows.stride(0) * rows.element_size()
    return torch.arange(len(rows)).mul_(each).add_(rows.data_ptr())


def _scratch(team: Team, vocab_size: int) -> torch.Tensor:
    return team.scratch(2 * (vocab_size + _SLACK))
