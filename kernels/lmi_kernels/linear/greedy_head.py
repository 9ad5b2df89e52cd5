"""The likeliest token of each row. Native kernels find it without computing all logits."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.logit_bounds import LogitBounds
from lmi_kernels.cpu.recorder import Ranks, Rows
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import shared_team
from lmi_kernels.elementwise.scale import softcap as cap_logits
from lmi_kernels.linear.linear import LinearWeight, linear


def make_logit_bounds(matrix: torch.Tensor, packed: LinearWeight) -> LogitBounds | None:
    """Make the bounds of a head for `greedy_head`. Return None where they would not help: without native kernels, for a
    head that is int8 itself, or if weights are not finite.

    matrix: [num_ids, hidden], any float dtype; packed: the same matrix, packed.
    """
    team = shared_team()
    if team is None or packed.native is None or packed.native.storage == Storage.INT8:
        return None
    bounds = LogitBounds(team, matrix)
    return bounds if bounds.is_usable else None


def greedy_head(
    x: torch.Tensor,
    weight: LinearWeight,
    bounds: LogitBounds | None,
    first_id: int = 0,
    softcap: float | None = None,
    ranks: Ranks | None = None,
) -> torch.Tensor:
    """Find the largest logit of each row. Of equal logits, the one with the lowest id counts.

    A recorded program computes bounds of all logits, and computes exactly only those that may be the largest. The
    result is the same.

    Args:
        x: [num_rows, hidden].
        weight: [num_ids, hidden], with its ids starting at `first_id`.
        bounds: made from the weight; required in a recorded program.
        softcap: logits become softcap * tanh(logit / softcap); None: they do not.
        ranks: ranks that have other ids, and call this together.

    Returns: [num_rows, 2], fp32: the logit and its id; NaN and 0 if the largest logit is not finite. In a recorded
        program with several ranks, -infinity and 0 if another rank's logit is known to be larger.
    """
    if isinstance(x, Rows):
        if weight.native is None or bounds is None:
            raise ValueError("a recorded greedy_head needs a native weight and its bounds")
        return x.recorder.greedy_head(x, weight.native, bounds, first_id, softcap or 0.0, ranks)
    logits = linear(x, weight).float()
    if softcap is not None:
        logits = cap_logits(logits, softcap)
    largest = logits.amax(dim=1)
    ids = (logits == largest[:, None]).int().argmax(dim=1)  # the first one
    finite = largest.isfinite()
    return torch.stack((largest.where(finite, torch.nan), (ids + first_id).where(finite, 0)), dim=1)
