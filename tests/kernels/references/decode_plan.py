"""Reference for `plan_decode` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmi_kernels import tuning
from lmi_kernels.attention.decode_plan import plan_decode
from lmi_kernels.attention.paged_sequences import PagedSequences
from tests.kernels.references.check import Inputs, OpCheck, Results


def only_lens(seq_lens: torch.Tensor) -> PagedSequences:
    """Return sequences without block tables and table rows, which `plan_decode` does not read."""
    return PagedSequences(seq_lens.new_empty(0, 0), seq_lens.new_empty(0), seq_lens)


def _launch(
    seq_lens: torch.Tensor,
    head_dim: int,
    window: int | None,
    num_programs: int | None,
    tuned: tuning.Parameters | None,
) -> Results:
    plan = plan_decode(only_lens(seq_lens), 8, head_dim, window, num_programs, tuned)
    return plan.tile_starts, plan.program_starts, plan.tiles_per_program


def _reference(seq_lens: torch.Tensor, head_dim: int, **settings: Any) -> Results:
    return plan_reference(seq_lens.tolist(), **settings)


def plan_reference(
    seq_lens: list[int], window: int | None, num_programs: int, tuned: tuning.Parameters
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a plan's `tile_starts`, `program_starts` and `tiles_per_program`, computed with plain integers."""
    owners: list[int] = []
    starts = [0]
    for i, seq_len in enumerate(seq_lens):
        first_key = 0 if window is None else max(seq_len - window, 0)
        owners += [i] * (-(-seq_len // tuned["block_n"]) - first_key // tuned["block_n"])
        starts.append(len(owners))
    per_program = max(-(-len(owners) // num_programs), tuned["min_tiles"])
    owners = owners or [len(seq_lens) - 1]
    program_starts = [owners[min(p * per_program, len(owners) - 1)] for p in range(num_programs + 1)]
    return torch.tensor(starts), torch.tensor(program_starts), torch.tensor([per_program])


EXAMPLE_TILES: tuning.Parameters = {"block_n": 64, "min_tiles": 2}
"""Launch parameters that do not depend on the device, so that references know them."""


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    def example(lengths: torch.Tensor, window: int | None = None, num_programs: int = 5) -> Inputs:
        settings = {"window": window, "num_programs": num_programs, "tuned": EXAMPLE_TILES}
        return {"seq_lens": lengths.to(torch.int32), "head_dim": 128, **settings}

    def random(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    yield example(torch.tensor([5000]), num_programs=33)
    yield example(torch.tensor([1]))
    yield example(torch.zeros(3))
    yield example(random(1, 400, 21) * random(0, 2, 21), num_programs=7)
    yield example(torch.cat([random(1, 99, 30), torch.tensor([9000]), random(1, 99, 9)]), num_programs=16)
    yield example(random(1, 3000, 40), window=700, num_programs=8)
    # More sequences and programs than a block handles at a time; more programs than tiles.
    yield example(random(0, 200, 1500), num_programs=1300)
    yield example(random(0, 2, 9), num_programs=1100)


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    for head_dim, window in ((128, None), (128, 4096), (64, None), (256, None)):
        seq_lens = torch.empty(32, dtype=torch.int32, device="meta")
        settings = {"window": window, "num_programs": None, "tuned": None}
        yield {"seq_lens": seq_lens, "head_dim": head_dim, **settings}


CHECKS = (OpCheck("plan_decode", _launch, _reference, _examples, _production, exact=True),)
