"""Random operations on the allocators, checked by naive accounting.

    python -m tests.engines.mpi.cache.allocator_operations [--operations 1000000] [--seed 0]

The accounting records the holders of each block, the reservations, and the contents of each slot: a mark that depends
on the tenant and on all tokens up to that position. It detects blocks that are allocated twice, pages of another prefix
or tenant, lost pages, and results that break a reservation. The exit code is 1 when an error was found.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.core import Request, SamplingParams
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.cache.allocator_accounting import TENANTS, Accounting, Violation, require

MakeBlockManager = Callable[[int, int, bool, bool], BlockManager]
_CALLS_PER_POOL = 2000
_CALLS_PER_AUDIT = 100


@dataclass(slots=True)
class Result:
    """Counts of a run."""

    calls: Counter[str] = field(default_factory=Counter)
    """Number of calls of each kind."""
    pages_found: int = 0
    """Pages found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A configuration of the allocator. `reserving` is the share of admissions with a reservation."""

    name: str
    paged: bool
    caching: bool
    reserving: float
    colliding_keys: bool = False


MODES = (
    Mode("contiguous", False, False, 1.0),
    Mode("paged, reserved", True, False, 1.0),
    Mode("paged, optimistic", True, False, 0.0),
    Mode("paged, mixed", True, False, 0.5),
    Mode("cached, reserved", True, True, 1.0),
    Mode("cached, optimistic", True, True, 0.0),
    Mode("cached, mixed", True, True, 0.5),
    Mode("cached, keys collide", True, True, 0.5, colliding_keys=True),
)


def make_sequence(
    id: str,  # noqa: A002
    prompt: list[int],
    max_new_tokens: int,
    tenant: str = "",
    prompt_logprobs: int | None = None,
) -> Sequence:
    sampling = SamplingParams(max_new_tokens, prompt_logprobs=prompt_logprobs)
    return Sequence(Request(id, tuple(prompt), sampling, arrival_time=0.0, tenant=tenant))


def run(
    num_operations: int,
    seed: int = 0,
    make: MakeBlockManager = make_block_manager,
    modes: tuple[Mode, ...] = MODES,
) -> Result:
    """Make at least `num_operations` calls. Each pool uses the next mode.

    Raises:
        Violation: the message names the mode, the seed and the number of the operation.
    """
    result = Result()
    pool = 0
    while result.calls.total() < num_operations:
        mode = modes[pool % len(modes)]
        before = result.calls.total()
        operations = _Operations(mode, random.Random(f"{seed} {pool}"), make, result)
        try:
            operations.run(before + _CALLS_PER_POOL)
        except (Violation, ValueError, RuntimeError, LookupError) as error:
            place = f"{mode.name}, seed {seed}, pool {pool}, operation {result.calls.total() - before}"
            raise Violation(f"{place}: {type(error).__name__}: {error}") from error
        pool += 1
    return result


class _Operations:
    """Operations on one pool."""

    def __init__(self, mode: Mode, chance: random.Random, make: MakeBlockManager, result: Result) -> None:
        self.mode = mode
        self.chance = chance
        self.result = result
        self.calls = result.calls
        num_blocks, size = chance.randint(1, 60), chance.randint(1, 5)
        self.size = size
        self.accounting = Accounting(num_blocks, size)
        self.manager = make(num_blocks, size, mode.paged, mode.caching)
        if mode.colliding_keys and isinstance(self.manager, PagedBlocks):
            make_keys_collide(self.manager)
        self.waiting: list[Sequence] = []
        self.num_sequences = 0
        self.stems = [chance.choices(range(3), k=6 * size) for _ in range(3)]

    def run(self, until: int) -> None:
        """Run until the number of calls, over all pools, reaches `until`."""
        kinds = (self.admit, self.compute, self.fork, self.release)
        weights = (30, 100, 6, 12)
        next_audit = 0
        while self.calls.total() < until:
            self.chance.choices(kinds, weights)[0]()
            self.check_counts()
            if self.calls.total() >= next_audit:
                self.audit()
                next_audit = self.calls.total() + _CALLS_PER_AUDIT
        self.audit()
        self.drain()

    def new_sequence(self, tenant: str, prompt: list[int]) -> Sequence | None:
        """Return a new sequence, or None when the pool could never hold it."""
        limit = self.accounting.num_blocks * self.size + 1
        if len(prompt) >= limit:
            return None
        new = self.chance.randint(1, min(4 * self.size, limit - len(prompt)))
        self.num_sequences += 1
        logprobs = 0 if self.chance.random() < 0.02 else None
        sequence = make_sequence(f"sequence {self.num_sequences}", prompt, new, tenant, logprobs)
        self.accounting.mark(sequence)
        return sequence

    def admit(self) -> None:
        chance = self.chance
        if self.waiting and chance.random() < 0.5:
            sequence: Sequence | None = self.waiting.pop(chance.randrange(len(self.waiting)))
        else:
            stem = chance.choice(self.stems)
            prompt = stem[: chance.randint(0, len(stem))] + chance.choices(range(3), k=chance.randint(1, 4))
            sequence = self.new_sequence(chance.choice(TENANTS), prompt)
        if sequence is not None:
            self.try_to_admit(sequence)

    def try_to_admit(self, sequence: Sequence) -> bool:
        accounting, manager = self.accounting, self.manager
        reserve = self.chance.random() < self.mode.reserving
        watermark = 0 if reserve else self.chance.choice((0, 0, 1, 2))
        worst = accounting.pages(max(sequence.max_num_tokens - 1, 1))
        require(manager.blocks_needed(sequence.max_num_tokens) == worst, "blocks_needed is wrong")
        needed = worst if reserve else accounting.pages(sequence.num_tokens) + watermark
        room, held = accounting.room, set(accounting.holders)
        admitted = manager.admit(sequence, reserve, watermark)
        self.calls["admit" if admitted else "refuse"] += 1
        if not admitted:
            require(
                not sequence.block_table and not sequence.num_computed_tokens,
                "a refused admission changed the sequence",
            )
            if self.mode.paged:
                require(needed > room, f"{needed} blocks refused although {room} are available")
            else:
                require(
                    not self.has_free_run(worst), f"a run of {worst} blocks refused although there is one"
                )
            return False
        table = sequence.block_table
        if self.mode.paged:
            idle = len(set(table) - held)
            require(
                needed - len(table) + idle <= room,
                f"{needed} blocks admitted although only {room} are available",
            )
            require(sequence.num_computed_tokens == len(table) * self.size, "a found page is not computed")
            require(sequence.num_computed_tokens < sequence.num_tokens, "no token is left to be computed")
            require(self.mode.caching or not table, "pages were found without a prefix cache")
            logprobs = sequence.request.sampling.prompt_logprobs is not None
            require(not (table and logprobs), "pages were found for a sequence with prompt_logprobs")
            self.result.pages_found += len(table)
        else:
            require(held.isdisjoint(table), "a block in use was allocated")
            require(table == list(range(table[0], table[0] + worst)), "the blocks are not contiguous")
        if reserve:
            accounting.reserved.add(sequence)
        accounting.set_table(sequence, table)
        accounting.check_content(sequence, "a page from the prefix cache")
        return True

    def has_free_run(self, count: int) -> bool:
        free = [block not in self.accounting.holders for block in range(self.accounting.num_blocks)]
        return any(all(free[i : i + count]) for i in range(len(free) - count + 1))

    def compute(self) -> None:
        """Compute tokens of a sequence. When all are computed, it gains a token or ends."""
        sequence = self.choose()
        if sequence is None:
            return
        accounting = self.accounting
        start = sequence.num_computed_tokens
        stop = self.chance.randint(start + 1, sequence.num_tokens)
        if not self.extend(sequence, stop):
            self.preempt(self.choose() or sequence)
            return
        for position in range(start, stop):
            accounting.slots[accounting.slot(accounting.tables[sequence], position)] = accounting.marks[
                sequence
            ][position]
        sequence.num_computed_tokens = stop
        if stop == sequence.num_tokens:
            sequence.token_ids.append(self.chance.randrange(3))
            accounting.mark(sequence)
        if self.chance.random() < 0.9:
            self.manager.cache_full_pages(sequence)
            self.calls["cache_full_pages"] += 1
        if sequence.num_tokens == sequence.max_num_tokens:
            self.end(sequence)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        accounting, table = self.accounting, list(sequence.block_table)
        missing = max(accounting.pages(num_tokens) - len(table), 0)
        possible = missing - min(missing, accounting.due(sequence)) <= max(accounting.room, 0)
        extended = self.manager.extend(sequence, num_tokens)
        self.calls["extend" if extended else "extend refused"] += 1
        require(extended == possible, f"extend returned {extended} for {missing} more blocks")
        fresh = sequence.block_table[len(table) :]
        require(sequence.block_table[: len(table)] == table, "extend changed the table")
        require(len(fresh) == (missing if extended else 0), "extend allocated too many or too few blocks")
        require(accounting.holders.keys().isdisjoint(fresh), "a block in use was allocated")
        require(len(set(fresh)) == len(fresh), "a block was allocated twice in one call")
        accounting.set_table(sequence, sequence.block_table)
        return extended

    def fork(self) -> None:
        source = self.choose()
        if source is None or source.num_computed_tokens == 0:
            return
        length = self.chance.randint(2, source.num_tokens)
        child = self.new_sequence(source.request.tenant, source.token_ids[:length])
        if child is None or not self.try_to_admit(child):
            return
        accounting = self.accounting
        for other in self.chance.sample(
            list(accounting.tables), min(len(accounting.tables), self.chance.randint(0, 3))
        ):
            if other is not child:  # other sequences take blocks in between
                self.extend(other, other.max_num_tokens - 1)
        own = child.num_computed_tokens
        last = min(source.num_computed_tokens, length - 1)
        if own > last:
            return
        count = self.chance.randint(own, last)
        full = count // self.size
        shares = self.mode.paged
        room = accounting.room + min(accounting.due(child), full - own // self.size)
        copies = self.manager.fork(source, child, count)
        self.calls["fork" if copies is not None else "fork refused"] += 1
        if copies is None:
            require(
                shares and count % self.size != 0 and room < 1, "a fork was refused although there is room"
            )
            require(child.block_table == accounting.tables[child], "a refused fork changed the sequence")
            return
        table = child.block_table
        if shares:
            require(table[:full] == source.block_table[:full], "full pages are not shared")
            require(len(table) == accounting.pages(count), "a fork has too many or too few blocks")
            require(accounting.holders.keys().isdisjoint(table[full:]), "a block in use was allocated")
        else:
            require(table == accounting.tables[child], "a fork changed a contiguous table")
        for block, copy in copies:
            for i in range(self.size):
                accounting.slots[copy * self.size + i] = accounting.slots[block * self.size + i]
        require(child.num_computed_tokens == count, "a fork has the wrong number of computed tokens")
        accounting.set_table(child, table)
        accounting.check_content(child, "a fork")

    def release(self) -> None:
        sequence = self.choose()
        if sequence is not None:
            self.end(sequence)
            if self.chance.random() < 0.2:
                self.manager.release(sequence)
                self.calls["release again"] += 1

    def preempt(self, sequence: Sequence) -> None:
        self.end(sequence)
        if len(self.waiting) < 5:
            self.waiting.append(sequence)
            self.accounting.mark(sequence)

    def end(self, sequence: Sequence) -> None:
        self.accounting.check_content(sequence, "at its end")
        self.accounting.remove(sequence)
        del self.accounting.marks[sequence]
        self.manager.release(sequence)
        self.calls["release"] += 1
        require(
            not sequence.block_table and not sequence.num_computed_tokens,
            "a released sequence still has blocks or tokens",
        )

    def choose(self) -> Sequence | None:
        held = self.accounting.tables
        return self.chance.choice(list(held)) if held else None

    def check_counts(self) -> None:
        manager, accounting = self.manager, self.accounting
        free, cached, used = manager.num_free, manager.num_cached, manager.num_used
        require(
            used == len(accounting.holders), f"{used} blocks used, sequences hold {len(accounting.holders)}"
        )
        require(
            free + cached + used == accounting.num_blocks and min(free, cached) >= 0,
            f"{free} free, {cached} cached and {used} used blocks are not all {accounting.num_blocks}",
        )
        require(accounting.room >= 0, "more blocks are reserved than available")

    def audit(self) -> None:
        accounting = self.accounting
        self.manager.check()
        slots = 0
        for sequence, table in accounting.tables.items():
            require(sequence.block_table == table, f"the table of {sequence.id} was changed")
            accounting.check_content(sequence, "while it runs")
            slots += len(table) * self.size - sequence.num_computed_tokens
        require(self.manager.num_unfilled_slots == slots, f"num_unfilled_slots is not {slots}")

    def drain(self) -> None:
        """End all sequences, then give all blocks to a single one."""
        for sequence in list(self.accounting.tables):
            self.end(sequence)
        self.check_counts()
        self.audit()
        lone = make_sequence("lone", [1] * self.accounting.num_blocks * self.size, 1)
        require(self.manager.admit(lone, reserve=True), "a block is lost: the pool cannot be filled")
        require(self.manager.extend(lone, lone.num_tokens), "a reservation was broken")
        require(sorted(lone.block_table) == list(range(self.accounting.num_blocks)), "a block is lost")
        self.manager.release(lone)
        self.manager.check()


def make_keys_collide(manager: PagedBlocks) -> None:
    """Make the keys of the prefix cache collide: only 8 values remain."""
    cache = manager.prefix_cache
    original = cache._make_key
    cache._make_key = lambda parent_key, content: bytes([original(parent_key, content)[0] % 8])  # type: ignore[method-assign]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Random operations on the allocators, checked by naive accounting."
    )
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    try:
        result = run(options.operations, options.seed)
    except Violation as violation:
        print(violation)
        return 1
    seconds = time.perf_counter() - begin
    print(", ".join(f"{count:,} {kind}" for kind, count in result.calls.most_common()))
    print(
        f"{result.calls.total():,} operations in {seconds:.1f} s; "
        f"{result.pages_found:,} pages found in the prefix cache"
    )
    print("no leak, no double free")
    return 0


if __name__ == "__main__":
    sys.exit(main())
