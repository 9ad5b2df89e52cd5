"""Native norms of heads, rotary embedding and cache write, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from lmi_kernels.cpu.structs import RopeAndStore, Step, Storage
from lmi_kernels.cpu.team import Program, Team
from tests.kernels.cpu.kv_cache import KvCache
from tests.support.randomness import random_seed

_STORAGES = (Storage.FP32, Storage.BF16, Storage.FP16, Storage.INT8)
Shape = tuple[int, int, int, int, int]
"""num_heads, num_kv_heads, head_dim, rotary_dim, block_size."""
_SHAPES: tuple[Shape, ...] = ((9, 3, 64, 64, 16), (4, 4, 20, 12, 5), (2, 1, 33, 8, 7), (8, 1, 80, 32, 32))
_POSITIONS = 50


class _Inputs:
    """Random rows, two of them without a slot."""

    def __init__(self, storage: Storage, shape: Shape, rows: int = 21) -> None:
        self.num_heads, self.num_kv_heads, head_dim, self.rotary_dim, block_size = shape
        generator = torch.Generator().manual_seed(random_seed())
        self.cache = KvCache(storage, 40 // block_size + 2, block_size, self.num_kv_heads, head_dim)
        self.heads = torch.randn(
            rows, self.num_heads + 2 * self.num_kv_heads, head_dim, generator=generator
        ) * torch.logspace(-2, 2, rows).view(-1, 1, 1)
        self.cos_sin = torch.randn(_POSITIONS, self.rotary_dim, generator=generator)
        self.positions = torch.randint(0, _POSITIONS, (rows,), generator=generator, dtype=torch.int32)
        self.slots = torch.randperm(40, generator=generator)[:rows].int()
        self.slots[[1, 5]] = -1
        self.norms = torch.rand(2, head_dim, generator=generator) + 0.5

    def run(
        self, team: Team, rotary: bool = True, norms: bool = False, interleaved: bool = False
    ) -> torch.Tensor:
        """Return the rows after the operation. Their stride is larger than their width."""
        rows = torch.full((len(self.heads), self.heads[0].numel() + 3), torch.nan)
        rows[:, :-3] = self.heads.flatten(1)
        op = RopeAndStore(
            qkv=rows.data_ptr(),
            qkv_stride=rows.stride(0),
            q_norm=self.norms[0].data_ptr() if norms else None,
            k_norm=self.norms[1].data_ptr() if norms else None,
            cos_sin=self.cos_sin.data_ptr() if rotary else None,
            cache=ctypes.addressof(self.cache.layer),
            num_heads=self.num_heads,
            rotary_dim=self.rotary_dim,
            eps=1e-5,
            interleaved=interleaved,
        )
        step = Step(num_rows=len(rows), positions=self.positions.data_ptr(), slots=self.slots.data_ptr())
        team.run(Program([op]), step)
        assert rows[:, -3:].isnan().all()
        return rows[:, :-3].reshape(self.heads.shape)

    def rotated(self, x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
        """Rotate the first `rotary_dim` numbers of each head, in x's precision: [rows, heads, head_dim]."""
        half = self.rotary_dim // 2
        cos, sin = self.cos_sin.to(x)[self.positions.long(), None].chunk(2, dim=-1)
        if interleaved:
            low, high = x[..., : self.rotary_dim].unflatten(-1, (half, 2)).unbind(-1)
            pairs = torch.stack((low * cos - high * sin, high * cos + low * sin), dim=-1).flatten(-2)
            return torch.cat([pairs, x[..., self.rotary_dim :]], dim=-1)
        low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", _SHAPES)
def test_rotates_queries_and_keys_and_rounds_each_product(
    team: Team, shape: Shape, interleaved: bool
) -> None:
    inputs = _Inputs(Storage.FP32, shape)
    found = inputs.run(team, interleaved=interleaved)
    num_rotated = inputs.num_heads + inputs.num_kv_heads
    assert torch.equal(found[:, :num_rotated], inputs.rotated(inputs.heads[:, :num_rotated], interleaved))
    assert torch.equal(found[:, num_rotated:], inputs.heads[:, num_rotated:])


@pytest.mark.parametrize("shape", _SHAPES)
def test_norms_are_applied_before_the_rotation(team: Team, shape: Shape) -> None:
    inputs = _Inputs(Storage.FP32, shape)
    found = inputs.run(team, norms=True)
    split = (inputs.num_heads, inputs.num_kv_heads, inputs.num_kv_heads)
    q, k, v = inputs.heads.double().split(split, dim=1)
    q, k = (
        x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * norm.double()
        for x, norm in zip((q, k), inputs.norms, strict=True)
    )
    expected = torch.cat([inputs.rotated(q), inputs.rotated(k), v], dim=1)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("storage", _STORAGES)
@pytest.mark.parametrize("shape", _SHAPES)
def test_stores_keys_and_values_at_their_slots_and_nothing_else(
    team: Team, storage: Storage, shape: Shape
) -> None:
    inputs = _Inputs(storage, shape)
    found = inputs.run(team)
    _, keys, values = found.split((inputs.num_heads, inputs.num_kv_heads, inputs.num_kv_heads), dim=1)
    stored = inputs.slots >= 0
    slots = inputs.slots[stored].long()
    if storage is not Storage.INT8:
        expected = KvCache(storage, inputs.cache.shape[0], shape[4], inputs.num_kv_heads, shape[2])
        expected.write(slots, keys[stored], values[stored])
        assert torch.equal(inputs.cache.data, expected.data)
        return
    both = inputs.cache.read()
    untouched = torch.ones(both.shape[1], dtype=torch.bool)
    untouched[slots] = False
    assert both[:, untouched].isnan().all()
    for place, x in ((0, keys), (1, values)):
        bound = x[stored].double().abs().amax(dim=-1, keepdim=True)
        assert ((both[place, slots] - x[stored]).abs() <= bound / 127 * 0.50001).all()


@pytest.mark.parametrize("size", [0.0, 1e-38])
def test_a_head_of_zeros_or_tiny_numbers_is_stored_as_zeros(team: Team, size: float) -> None:
    """127 / 1e-38 is not finite."""
    inputs = _Inputs(Storage.INT8, _SHAPES[0])
    inputs.heads[0] = 0
    inputs.heads[0, :, 0] = size
    inputs.run(team)
    assert (inputs.cache.read()[:, inputs.slots[0]] == 0).all()


@pytest.mark.parametrize("column", [0, 40, -1])
def test_a_head_with_a_nan_is_not_stored_as_finite_numbers(team: Team, column: int) -> None:
    inputs = _Inputs(Storage.INT8, _SHAPES[0])
    inputs.heads[0, -1, column] = torch.nan
    inputs.run(team)
    values = inputs.cache.read()[1, inputs.slots[0]]
    assert values[-1].isnan().all()
    assert values[:-1].isfinite().all()


@pytest.mark.parametrize("storage", [Storage.BF16, Storage.FP16])
def test_extreme_numbers_are_rounded_like_torch(team: Team, storage: Storage) -> None:
    inputs = _Inputs(storage, _SHAPES[0])
    edges = torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -65519.0, 65520.0, 1e-41, 6e-8])
    edges = torch.cat([edges, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    inputs.heads = edges[torch.arange(inputs.heads.numel()) % len(edges)].view(inputs.heads.shape)
    inputs.run(team, rotary=False)
    slots = inputs.slots[0].long()
    keys = inputs.heads[0, inputs.num_heads : -inputs.num_kv_heads].to(inputs.cache.dtype).double()
    torch.testing.assert_close(inputs.cache.read()[0, slots], keys, atol=0, rtol=0, equal_nan=True)
