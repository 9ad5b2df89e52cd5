"""Random operations find no errors in the allocators, but do find the errors of broken ones."""

from __future__ import annotations

import pytest

from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.cache.contiguous_blocks import ContiguousBlocks
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.cache.allocator_accounting import Violation
from tests.engines.mpi.cache.allocator_operations import MODES, Mode, main, run


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_accounting_agrees_after_every_operation(mode: Mode) -> None:
    result = run(4000, seed=1, modes=(mode,))
    assert min(result.calls[kind] for kind in ("admit", "refuse", "release")) > 50
    assert result.calls["fork"] > 10
    assert (result.pages_found > 0) == mode.caching


class _LosesTheLastBlock(PagedBlocks):
    def _drop(self, sequence: Sequence) -> None:
        del sequence.block_table[-1:]
        super()._drop(sequence)


class _LosesTheEndOfARun(ContiguousBlocks):
    def release(self, sequence: Sequence) -> None:
        del sequence.block_table[1:]
        super().release(sequence)


class _FreesTwice(PagedBlocks):
    def release(self, sequence: Sequence) -> None:
        table = list(sequence.block_table)
        super().release(sequence)
        self._pool.free(table[:1])


class _FreesSharedBlocks(PagedBlocks):
    def _drop(self, sequence: Sequence) -> None:
        for block in sequence.block_table:
            self._ref_counts[block] = 1
        super()._drop(sequence)


class _KeepsReservationsAfterRelease(PagedBlocks):
    def release(self, sequence: Sequence) -> None:
        self._num_reserved += 1 if self._reserved.get(sequence) else 0
        super().release(sequence)


class _AdmitsOneBlockTooMany(PagedBlocks):
    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        return super().admit(sequence, reserve, watermark - 1)


class _TakesReservedBlocks(PagedBlocks):
    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        reserved, self._num_reserved = self._num_reserved, self._reserved[sequence]
        extended = super().extend(sequence, num_tokens)
        self._num_reserved += reserved
        return extended


class _IgnoresTenants(PrefixCache):
    def _content(self, sequence: Sequence, index: int) -> bytes:
        content = super()._content(sequence, index)
        return content[len(sequence.request.tenant.encode()) :] if index == 0 else content


class _CachesUncomputedPages(PrefixCache):
    def add_full_pages(self, sequence: Sequence) -> None:
        computed = sequence.num_computed_tokens
        reach = len(sequence.block_table) * self._block_size
        sequence.num_computed_tokens = min(reach, sequence.num_tokens)
        super().add_full_pages(sequence)
        sequence.num_computed_tokens = computed


@pytest.mark.parametrize(
    "broken",
    [
        _LosesTheLastBlock,
        _LosesTheEndOfARun,
        _FreesTwice,
        _FreesSharedBlocks,
        _KeepsReservationsAfterRelease,
        _AdmitsOneBlockTooMany,
        _TakesReservedBlocks,
    ],
)
def test_a_broken_allocator_is_found(broken: type[PagedBlocks] | type[ContiguousBlocks]) -> None:
    def make(num_blocks: int, block_size: int, paged: bool, prefix_caching: bool) -> BlockManager:
        if not paged:
            return (broken if broken is _LosesTheEndOfARun else ContiguousBlocks)(num_blocks, block_size)
        paged_class = PagedBlocks if broken is _LosesTheEndOfARun else broken
        return paged_class(num_blocks, block_size, prefix_caching)

    with pytest.raises(Violation):
        run(20000, seed=1, make=make)


@pytest.mark.parametrize("broken", [_IgnoresTenants, _CachesUncomputedPages])
def test_a_broken_prefix_cache_is_found(broken: type[PrefixCache], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.mpi.cache.paged_blocks.PrefixCache", broken)
    with pytest.raises(Violation, match=r"page from the prefix cache|IndexError"):
        run(20000, seed=1)


def test_the_command_prints_a_summary_or_the_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--operations", "500"]) == 0
    assert capsys.readouterr().out.endswith("no leak, no double free\n")
    monkeypatch.setattr(
        "tests.engines.mpi.cache.allocator_operations.run",
        lambda *_: run(4000, make=lambda n, s, *_: _LosesTheLastBlock(n, s), modes=MODES[1:2]),
    )
    assert main([]) == 1
    assert "blocks used, sequences hold" in capsys.readouterr().out
