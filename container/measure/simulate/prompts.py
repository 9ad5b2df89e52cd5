"""Requests of a workload as token ids, without a tokenizer. Equal prefixes have equal ids; other prompts differ."""

from __future__ import annotations

from collections.abc import Callable

from container.measure.bench.workload import BenchRequest, Workload, draw_shapes

_OWN, _SHARED = 0, 1
"""Filler token ids of a prompt's own part, and of a block that prompts share."""


def virtual_requests(
    workload: Workload, seed: int, vocab_size: int
) -> tuple[tuple[BenchRequest, ...], Callable[[BenchRequest], tuple[int, ...]]]:
    """Return the requests that `lmi bench` sends with this seed, without text, and a function for their token ids."""
    shapes = draw_shapes(workload, seed)
    block_tokens = workload.prefixes.block_tokens if workload.prefixes else 0

    def distinct_ids(number: int, length: int, filler: int) -> tuple[int, ...]:
        """Return `length` token ids, different for each number."""
        high, low = divmod(number, vocab_size)
        return (low, high % vocab_size, *(filler,) * (length - 2))[:length]

    def prompt(request: BenchRequest) -> tuple[int, ...]:
        block_ids = shapes[request.index].block_ids
        ids: tuple[int, ...] = ()
        for block in block_ids:
            ids += distinct_ids(block, block_tokens, _SHARED)
        return ids + distinct_ids(request.index, request.prompt_tokens - len(ids), _OWN)

    requests = tuple(
        BenchRequest(index, "", shape.prompt_tokens, shape.output_tokens)
        for index, shape in enumerate(shapes)
    )
    return requests, prompt
