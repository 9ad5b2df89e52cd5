"""A row's result has the same bits whatever else its step computes: compared by `torch.equal`, never by tolerance."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmi_kernels import (
    Workspace,
    attention,
    batch_invariant_rows,
    linear,
    pack,
    rms_norm,
    rotary_,
    silu_and_mul,
    store_kv,
)
from lmi_kernels.attention.grouped_cpu import cuts_long_sums
from lmi_kernels.attention.grouped_plan import KEY_TILE, GroupLimits, decode_order, plan_chunk, plan_decodes
from tests.support.examples import examples
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.seeds import fresh_generator, generator_from, integers

pytestmark = pytest.mark.usefixtures("torch_kernels")


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Heads:
    kv_heads: int
    share: int
    head_dim: int


@dataclass(frozen=True)
class Sequence:
    """Queries, keys and values by position; all of them are known, as after a preemption."""

    q: torch.Tensor
    kv: torch.Tensor

    @classmethod
    def random(cls, length: int, heads: Heads, generator: torch.Generator) -> Sequence:
        q = torch.randn(length, heads.kv_heads * heads.share, heads.head_dim, generator=generator)
        kv = torch.randn(length, 2, heads.kv_heads, heads.head_dim, generator=generator)
        return cls(q * 3, kv)


class Cache:
    """A pool that holds some sequences, paged in shuffled blocks or in runs."""

    def __init__(
        self,
        sequences: list[Sequence],
        heads: Heads,
        block_size: int,
        max_keys: int,
        contiguous: bool,
        rng: random.Random,
    ) -> None:
        needed = [-(-len(s.q) // block_size) for s in sequences]
        if contiguous and rng.random() < 0.5:
            needed = [max(needed)] * len(needed)
        blocks = list(range(sum(needed) + rng.randint(0, 2)))
        if not contiguous:
            rng.shuffle(blocks)
        self.tables: list[list[int]] = []
        for count in needed:
            self.tables.append([blocks.pop(0) for _ in range(count)])
        self.num_blocks = sum(needed) + len(blocks)
        self.limits = GroupLimits(block_size, self.num_blocks, heads.kv_heads, max_keys)
        self.contiguous = contiguous
        self.pool = torch.randn(2, heads.kv_heads, self.num_blocks, block_size, heads.head_dim)
        for sequence, table in zip(sequences, self.tables, strict=True):
            slots = [table[p // block_size] * block_size + p % block_size for p in range(len(sequence.q))]
            store_kv(sequence.kv, self.pool, torch.tensor(slots))

    def step(self, sequences: list[Sequence], parts: list[tuple[int, int]]) -> torch.Tensor:
        """Attend from positions [start, stop) of each sequence at once; the first sequence's results."""
        singles = [i for i, (start, stop) in enumerate(parts) if stop - start == 1]
        lens = [parts[i][1] for i in singles]
        order = decode_order(lens, [self.tables[i] for i in singles], self.contiguous)
        singles = [singles[i] for i in order]
        tables = [self.tables[i] for i in singles]
        groups = plan_decodes([parts[i][1] for i in singles], tables, self.limits, self.contiguous)
        rows = [*singles, *(i for i, (start, stop) in enumerate(parts) if stop - start > 1)]
        first_row = {}
        row = 0
        for i in rows:
            start, stop = parts[i]
            first_row[i] = row
            if stop - start > 1:
                groups.append(plan_chunk(row, stop - start, stop, self.tables[i], self.limits))
            row += stop - start
        q = torch.cat([sequences[i].q[slice(*parts[i])] for i in rows])
        out = torch.full_like(q, torch.nan)
        attention(q, self.pool, groups, Workspace(), out)
        return out[first_row[0] : first_row[0] + parts[0][1] - parts[0][0]]


def _alone_and_whole(sequence: Sequence, heads: Heads) -> torch.Tensor:
    cache = Cache([sequence], heads, 16, 100_000, True, random.Random(0))
    return cache.step([sequence], [(0, len(sequence.q))])


def _cuts(length: int, sizes: list[int], rng: random.Random) -> list[tuple[int, int]]:
    parts = []
    start = 0
    while start < length:
        stop = min(length, start + rng.choice(sizes))
        parts.append((start, stop))
        start = stop
    return parts


HEADS = st.builds(
    Heads, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4, 7]), st.sampled_from([4, 8, 16, 64, 80])
)


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "heads": draw(HEADS),
        # One tile of keys, two, and more.
        "length": draw(st.integers(1, 40) | st.integers(180, 210) | st.integers(380, 450)),
        "sizes": draw(st.lists(st.sampled_from([1, 2, 7, 37, 64, 100, 256]), min_size=1, max_size=4)),
        "block_size": draw(st.sampled_from([1, 3, 4, 16, 32])),
        "max_keys": draw(st.sampled_from([1, 300, 2048])),
        "contiguous": draw(st.booleans()),
        "neighbours": draw(st.lists(st.integers(1, 500), max_size=6)),
        "seed": draw(st.integers(0, 2**31 - 1)),
    }


@torch.inference_mode()
def _check_attention(
    heads: Heads,
    length: int,
    sizes: list[int],
    block_size: int,
    max_keys: int,
    contiguous: bool,
    neighbours: list[int],
    seed: int,
) -> None:
    """Some of a sequence's chunks, in company and wherever they lie, against the sequence alone in one chunk."""
    generator, rng = generator_from(seed), random.Random(seed)
    ours = Sequence.random(length, heads, generator)
    sequences = [ours, *(Sequence.random(n, heads, generator) for n in neighbours)]
    cache = Cache(sequences, heads, block_size, max_keys, contiguous, rng)
    with threads(1):
        whole = _alone_and_whole(ours, heads)
    parts = _cuts(length, sizes, rng)
    for start, stop in rng.sample(parts, min(len(parts), 12)):
        stops = [rng.randint(1, n) for n in neighbours]
        others = [(max(0, end - rng.choice([1, 1, 1, 5])), end) for end in stops]
        results = cache.step(sequences, [(start, stop), *others])
        assert torch.equal(results, whole[start:stop]), (start, stop)


@examples(60)
@given(_cases())
def test_attention(case: dict[str, Any]) -> None:
    with threads(1):
        _check_attention(**case)


@examples(8)
@given(_cases())
def test_attention_by_two_threads(case: dict[str, Any]) -> None:
    with threads(2):
        _check_attention(**case)


@pytest.mark.parametrize(("number", "step"), [(1, 1), (2, 5)])
@torch.inference_mode()
def test_attention_around_the_edges_of_key_tiles(number: int, step: int) -> None:
    """Every length near a tile's edge: as a decode, and as the last row of a chunk."""
    generator = fresh_generator()
    heads = Heads(3, 3, 64)
    ours = Sequence.random(2 * KEY_TILE + 20, heads, generator)
    whole = _alone_and_whole(ours, heads)
    cache = Cache([ours], heads, 16, 2048, False, random.Random(1))
    ends = [end for edge in (16, KEY_TILE, 2 * KEY_TILE) for end in range(edge - 3, edge + 20, step)]
    with threads(number):
        for end in ends:
            for start in {end - 1, max(0, end - 21)}:
                assert torch.equal(cache.step([ours], [(start, end)]), whole[start:end]), (start, end)


@torch.inference_mode()
def test_the_matmul_library_cuts_long_sums_as_it_says() -> None:
    if not cuts_long_sums():
        pytest.skip("this machine's library cuts sums elsewhere: the tiles are added one by one")
    generator = fresh_generator()
    for rows in (4, 12, 192):
        weights = torch.rand(3, rows, 2304, generator=generator)
        values = torch.randn(3, 2304, 64, generator=generator)
        for keys in [*range(2 * KEY_TILE, 800, 80), 1024, 2304]:
            sums = torch.bmm(weights[:, :, :KEY_TILE], values[:, :KEY_TILE])
            for start in range(KEY_TILE, keys, KEY_TILE):
                stop = min(keys, start + KEY_TILE)
                sums.baddbmm_(weights[:, :, start:stop], values[:, start:stop])
            assert torch.equal(torch.bmm(weights[:, :, :keys], values[:, :keys]), sums)


@pytest.mark.parametrize(("out_features", "in_features"), [(192, 36), (960, 576), (576, 1536)])
@pytest.mark.parametrize("number", [1, 2])
@torch.inference_mode()
def test_packed_linear(out_features: int, in_features: int, number: int) -> None:
    generator = fresh_generator()
    w = (torch.randn(out_features, in_features, generator=generator) * 0.05).half().float()
    weight = pack(w, torch.randn(out_features, generator=generator))
    assert weight.packed is not None
    x = torch.randn(96, in_features, generator=generator)
    expected = linear(x, weight)
    counts = {batch_invariant_rows(n) for n in (*range(1, 70, number), 127, 129, 255, 257)}
    with threads(number):
        for num_rows in sorted(counts):
            rows = torch.tensor(integers(generator, 0, 96, num_rows))
            assert torch.equal(linear(x[rows], weight), expected[rows]), num_rows


@pytest.mark.parametrize("strict", [False, True])
def test_dense_rows_are_bit_equal_where_that_is_promised(strict: bool) -> None:
    environment = {"MKL_CBWR": "AUTO,STRICT"} if strict else {"MKL_CBWR": "AUTO"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.dense_rows"],
        env=child_environment(environment),
        cwd=REPO_ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    if found["promised"]:
        assert not found["unequal"]
    if strict and "GenuineIntel" in Path("/proc/cpuinfo").read_text():
        assert found["promised"]


def test_padding_is_small_and_keeps_what_is_good() -> None:
    for num_rows in range(1, 3000):
        packed, either = batch_invariant_rows(num_rows), batch_invariant_rows(num_rows, dense=True)
        assert num_rows <= packed <= num_rows + 2
        assert packed <= either <= num_rows + 7
        assert either % 4 == 0
        for rows in (packed, either):
            assert batch_invariant_rows(rows) == rows


@torch.inference_mode()
def test_elementwise_operations() -> None:
    generator = fresh_generator()
    for hidden in (36, 576):
        x = torch.randn(96, 2 * hidden, generator=generator)
        weight = torch.randn(2 * hidden, generator=generator)
        angles = torch.randn(96, 1, hidden // 9, generator=generator)

        def turned(
            rows: torch.Tensor, x: torch.Tensor = x, angles: torch.Tensor = angles, hidden: int = hidden
        ) -> torch.Tensor:
            heads = x[rows].view(len(rows), 18, hidden // 9).clone()
            rotary_(heads, angles[rows].cos(), angles[rows].sin())
            return heads

        every = torch.arange(96)
        for num_rows in (1, 2, 3, 4, 7, 33, 300):
            rows = torch.tensor(integers(generator, 0, 96, num_rows))
            assert torch.equal(rms_norm(x[rows], weight, 1e-5), rms_norm(x, weight, 1e-5)[rows])
            assert torch.equal(silu_and_mul(x[rows]), silu_and_mul(x)[rows])
            assert torch.equal(turned(rows), turned(every)[rows])
