"""Native attention against fp64. The result of a query depends only on its own keys, bit by bit."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lmi_kernels import ScoreRules
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
from tests.kernels.cpu.attending import Chunk, Sequences, Shape
from tests.support.randomness import random_seed

_STORAGES = (Storage.FP32, Storage.BF16, Storage.FP16, Storage.INT8)
_SHAPES = (Shape(9, 3, 64, 16), Shape(8, 1, 96, 64), Shape(5, 1, 20, 7))
_MORE_SHAPES = (
    Shape(3, 3, 80, 32),
    Shape(16, 2, 64, 8),
    Shape(3, 1, 33, 1),
    Shape(2, 2, 1, 128),
    Shape(7, 7, 72, 48),
    Shape(98, 1, 32, 16),
)
_KINDS = [(storage, shape) for storage in _STORAGES for shape in _SHAPES]
_LENGTHS = (1, 40, 63, 64, 65, 200)
_LONG = 1300


def _mixed(lengths: tuple[int, ...]) -> list[Chunk]:
    """Make one chunk for each sequence: in turn a decode, a whole prompt and the rest of a prompt."""
    starts = (lambda n: n - 1, lambda n: 0, lambda n: n // 2)
    return [Chunk(i, starts[i % 3](length), length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("storage", "shape"), [*_KINDS, *((Storage.FP32, shape) for shape in _MORE_SHAPES)], ids=str
)
def test_mixed_steps_match_fp64(library: Library, team: Team, storage: Storage, shape: Shape) -> None:
    sequences = Sequences(storage, shape, _LENGTHS, random_seed(), spread=2.0)
    chunks = _mixed(_LENGTHS)
    for chunk, found in zip(chunks, sequences.attend(library, team, chunks), strict=True):
        torch.testing.assert_close(found.double(), sequences.expected(chunk), atol=1e-5, rtol=1e-5)


def _rules(shape: Shape) -> dict[str, ScoreRules]:
    generator = torch.Generator().manual_seed(random_seed())
    plain = ScoreRules(shape.head_dim**-0.5)
    slopes = 2.0 ** (-torch.linspace(0.5, 8, shape.num_heads))
    sinks = torch.randn(shape.num_heads, generator=generator) * 3
    return {
        "plain": plain,
        "window of one": replace(plain, window=1),
        "window": replace(plain, window=37),
        "long window": replace(plain, window=540),
        "softcap": replace(plain, softcap=2.5),
        "wide softcap": replace(plain, softcap=50.0),
        "slopes": replace(plain, alibi_slopes=slopes),
        "sinks": replace(plain, sinks=sinks),
        "all": ScoreRules(plain.scale, 100, 5.0, slopes, sinks),
    }


@pytest.mark.parametrize("name", _rules(_SHAPES[0]))
@pytest.mark.parametrize("storage", [Storage.FP32, Storage.INT8])
@pytest.mark.parametrize("shape", [Shape(6, 2, 64, 16), Shape(5, 1, 20, 7)], ids=str)
def test_score_rules_match_fp64(
    library: Library, team: Team, storage: Storage, shape: Shape, name: str
) -> None:
    rules = _rules(shape)[name]
    sequences = Sequences(storage, shape, (*_LENGTHS, _LONG), random_seed(), spread=2.0)
    chunks = [*_mixed(_LENGTHS), Chunk(len(_LENGTHS), _LONG - 70, _LONG)]
    for chunk, found in zip(chunks, sequences.attend(library, team, chunks, rules=rules), strict=True):
        torch.testing.assert_close(found.double(), sequences.expected(chunk, rules), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("scale", [0.0, 30.0, 3e4])
def test_flat_and_sharp_softmaxes(library: Library, team: Team, scale: float) -> None:
    sequences = Sequences(Storage.FP32, Shape(3, 1, 64, 16), (300,), random_seed())
    sequences.q[0] = sequences.q[0].sign() * scale
    sequences.kv[0][0] = sequences.kv[0][0].sign()
    chunk = Chunk(0, 100, 300)
    (found,) = sequences.attend(library, team, [chunk])
    torch.testing.assert_close(found.double(), sequences.expected(chunk), atol=3e-5, rtol=3e-5)


def test_a_nan_query_affects_no_other_query(library: Library, team: Team) -> None:
    sequences = Sequences(Storage.FP32, Shape(3, 1, 64, 16), (80,), random_seed())
    chunk = Chunk(0, 0, 80)
    (expected,) = sequences.attend(library, team, [chunk])
    sequences.q[0][17, 1] = torch.nan
    (found,) = sequences.attend(library, team, [chunk])
    assert found[17, 1].isnan().all()
    found[17, 1] = expected[17, 1]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("storage", "shape"), [*_KINDS, (Storage.FP32, Shape(2, 2, 32, 16))], ids=str)
def test_results_are_bit_identical_for_any_chunks_and_other_sequences(
    library: Library, team: Team, storage: Storage, shape: Shape
) -> None:
    lengths = (150, 30, 70)
    seed = random_seed()
    sequences = Sequences(storage, shape, lengths, seed)
    (whole,) = sequences.attend(library, team, [Chunk(0, 0, 150)])
    rng = random.Random(seed)
    cuts = [0, *sorted(rng.sample(range(1, 150), 6)), 150]
    for start, stop in pairwise(cuts):
        others = [Chunk(1, rng.randrange(30), 30), Chunk(2, 69, 70)][: rng.randrange(3)]
        chunks = [*others, Chunk(0, start, stop)]
        assert torch.equal(sequences.attend(library, team, chunks)[-1], whole[start:stop])
    for position in (0, 15, 16, 63, 64, 100, 149):
        (single,) = sequences.attend(library, team, [Chunk(0, position, position + 1)])
        assert torch.equal(single, whole[position : position + 1]), position


@pytest.mark.parametrize(
    ("storage", "name"),
    [*((storage, "plain") for storage in _STORAGES), (Storage.BF16, "long window"), (Storage.BF16, "all")],
)
def test_split_long_sequences_are_bit_identical(library: Library, storage: Storage, name: str) -> None:
    shape = Shape(3, 1, 32, 16)
    rules = _rules(shape)[name]
    sequences = Sequences(storage, shape, (_LONG, 5), random_seed())
    (whole,) = sequences.attend(library, Team(library, 1), [Chunk(0, 0, _LONG)], split=False, rules=rules)
    expected = sequences.expected(Chunk(0, _LONG - 100, _LONG), rules)
    torch.testing.assert_close(whole[-100:].double(), expected, atol=3e-6, rtol=3e-6)
    for num_threads in (1, 2, 5):
        team = Team(library, num_threads)
        for queries, stop in ((100, _LONG), (40, _LONG), (7, _LONG), (1, _LONG), (150, 650), (1, 40)):
            chunks = [Chunk(1, 0, 5), Chunk(0, stop - queries, stop)]
            found = sequences.attend(library, team, chunks, rules=rules)
            assert torch.equal(found[1], whole[stop - queries : stop]), (num_threads, queries, stop)
