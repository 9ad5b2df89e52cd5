"""Compares rows of fp32 products with the same rows in other company, in a process of its own.

How the matrix library computes a row is chosen once a process, by the environment variable MKL_CBWR.
"""

from __future__ import annotations

import json

import torch

from lmi_kernels import batch_invariant_rows, dense_rows_are_bit_equal, experts, linear, pack, pack_experts
from tests.support.seeds import generator_from, integers

_ROWS = 96
_SEED = 7


@torch.inference_mode()
def _unequal_products(num_threads: int) -> list[str]:
    generator = generator_from(_SEED)
    unequal = []
    for out_features, in_features in ((192, 36), (960, 576), (576, 1536)):
        weight = pack(torch.randn(out_features, in_features, generator=generator))
        x = torch.randn(_ROWS, in_features, generator=generator)
        expected = linear(x, weight)
        for num_rows in sorted({batch_invariant_rows(n, dense=True) for n in (*range(1, 70), 127, 257)}):
            rows = torch.tensor(integers(generator, 0, _ROWS, num_rows))
            if not torch.equal(linear(x[rows], weight), expected[rows]):
                unequal.append(f"{num_threads} threads: {num_rows} rows of {out_features} x {in_features}")
    return unequal


@torch.inference_mode()
def _unequal_experts(num_threads: int) -> list[str]:
    generator = generator_from(_SEED)
    unequal = []
    for hidden, intermediate, top_k in ((36, 50, 3), (576, 192, 2)):
        gate_up = torch.randn(6, 2 * intermediate, hidden, generator=generator) / hidden**0.5
        down = torch.randn(6, hidden, intermediate, generator=generator) / intermediate**0.5
        weights = pack_experts(gate_up, down)
        x = torch.randn(_ROWS, hidden, generator=generator)
        logits = torch.randn(_ROWS, 6, generator=generator)
        expected = experts(x, logits, weights, top_k)
        for num_rows in (*range(1, 24), 40, 57, 96, 150):
            rows = torch.tensor(integers(generator, 0, _ROWS, num_rows))
            if not torch.equal(experts(x[rows], logits[rows], weights, top_k), expected[rows]):
                unequal.append(f"{num_threads} threads: {num_rows} rows through experts of {hidden}")
    return unequal


def main() -> None:
    found: dict[str, object] = {"promised": True, "unequal": []}
    unequal: list[str] = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        found["promised"] = found["promised"] and dense_rows_are_bit_equal()
        unequal += _unequal_products(num_threads) + _unequal_experts(num_threads)
    found["unequal"] = unequal
    print(json.dumps(found))


if __name__ == "__main__":
    main()
