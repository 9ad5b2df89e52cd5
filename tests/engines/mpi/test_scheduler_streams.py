"""Any stream of requests, aborts and failures, against what each request would be alone.

The model here reads its whole history from the cache through the block table, so wrong tables give wrong tokens.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engines.config import SchedulerConfig
from engines.core import Request, RequestOutput
from engines.errors import InvalidRequest, Overloaded, RequestFailed
from engines.mpi.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler import SampledToken, Scheduler, Step
from engines.mpi.sequence import Sequence
from tests.engines.mpi.fakes import VOCAB, FakeModel, continue_alone, make_request

_TOKENS = st.integers(0, VOCAB - 1)


class _Stream(RuleBasedStateMachine):
    paged: bool
    policy = "guaranteed_no_evict"

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(1, 6),
        max_prefill_tokens=st.integers(1, 20),
        max_waiting=st.integers(1, 8),
        max_model_len=st.integers(6, 60),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_prefill_tokens: int,
        max_waiting: int,
        max_model_len: int,
    ) -> None:
        self.blocks: BlockManager = make_block_manager(num_blocks, block_size, self.paged)
        self.config = SchedulerConfig(max_num_seqs, max_prefill_tokens, max_waiting, self.policy)
        self.limit = min(max_model_len, num_blocks * block_size + 1)
        self.scheduler = Scheduler(self.config, self.blocks, max_model_len)
        self.model = FakeModel(block_size)
        self.now = 0.0
        self.count = 0
        self.live: dict[str, Request] = {}
        """Accepted and not yet ended, in the order of arrival."""
        self.started: dict[str, Sequence] = {}
        """Live ones that were in a step."""
        self.tokens: dict[str, list[int]] = {}
        self.positions: Counter[tuple[str, int]] = Counter()
        self.dirty: set[int] = set()
        """Blocks that must be scrubbed before the next step computes."""
        self.batch: set[str] = set()
        """Those that were there when the static batch began."""

    # What clients do

    @rule(data=st.data(), count=st.integers(1, 3))
    def submit(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            length = data.draw(st.integers(1, self.limit - 1))
            new = data.draw(st.integers(1, self.limit - length))
            stop = data.draw(st.lists(_TOKENS, max_size=3))
            self.submit_one(length, new, stop)

    @rule(length=st.integers(1, 70), new=st.integers(1, 70))
    def submit_too_much(self, length: int, new: int) -> None:
        if length + new > self.limit:
            with pytest.raises(InvalidRequest, match=str(self.limit)):
                self.scheduler.add(make_request("too long", [1] * length, new))
            assert self.scheduler.request_ids() == list(self.live)

    def submit_one(self, length: int, new: int, stop: list[int]) -> None:
        self.count += 1
        prompt = [(self.count + i * i) % VOCAB for i in range(length)]
        request = make_request(f"r{self.count}", prompt, new, stop)
        # Running and waiting together: those that the next step has a place for do not wait.
        if len(self.live) >= self.config.max_num_seqs + self.config.max_waiting:
            with pytest.raises(Overloaded):
                self.scheduler.add(request)
        else:
            self.scheduler.add(request)
            self.live[request.id] = request
            self.tokens[request.id] = []
        assert self.scheduler.request_ids() == list(self.live)

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.abort_one(data.draw(st.sampled_from(sorted(self.live))))

    @rule()
    def abort_one_that_is_not_there(self) -> None:
        assert not self.scheduler.abort("nobody")

    # What the engine does

    @rule(times=st.integers(1, 4))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.step(set(), set())

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data(), finite=st.booleans())
    def step_with_poison(self, data: st.DataObject, finite: bool) -> None:
        """Some requests break the step they are in, or get logits that are not finite."""
        chosen = set(data.draw(st.lists(st.sampled_from(sorted(self.live)), max_size=3)))
        self.step(chosen if finite else set(), set() if finite else chosen)

    def step(self, breaking: set[str], not_finite: set[str]) -> None:
        self.now += 1.0
        step = self.scheduler.schedule(self.now)
        if step is None:
            assert not self.live, "requests are there, and nothing is computed"
            return
        self.check_step(step)
        for output in self.compute(step, breaking, not_finite):
            self.take(output)
        self.check_blocks()

    def compute(self, step: Step, breaking: set[str], not_finite: set[str]) -> list[RequestOutput]:
        """As the engine does it: a step that breaks is halved until the culprit is alone."""
        if any(sequence.id in breaking for sequence in step.sequences):
            if len(step.sequences) == 1:
                (culprit,) = step.sequences
                self.dirty |= set(culprit.block_table)
                return self.scheduler.fail([culprit], RequestFailed("broken"))
            return [o for half in step.halves() for o in self.compute(half, breaking, not_finite)]
        for sequence, planned in zip(step.sequences, step.plan.sequences, strict=True):
            self.positions.update((sequence.id, p) for p in range(planned.start, planned.seq_len))
        tokens = [
            SampledToken(token, finite=sequence.id not in not_finite)
            for token, sequence in zip(self.model.run(step.plan), step.sampled, strict=True)
        ]
        for sequence, token in zip(step.sampled, tokens, strict=True):
            if not token.finite:
                self.dirty |= set(sequence.block_table)
        return self.scheduler.update(step, tokens, self.now)

    # What must hold

    def check_step(self, step: Step) -> None:
        ids = [sequence.id for sequence in step.sequences]
        assert len(ids) == len(set(ids)) <= self.config.max_num_seqs
        assert set(ids) <= set(self.live)
        prefill = 0
        for sequence, planned in zip(step.sequences, step.plan.sequences, strict=True):
            assert planned.query_len >= 1
            assert planned.start == sequence.num_computed_tokens
            assert list(planned.token_ids) == sequence.token_ids[planned.start : planned.seq_len]
            assert planned.sample == (planned.seq_len == sequence.num_tokens)
            assert list(planned.block_table) == sequence.block_table[: len(planned.block_table)]
            prefill += max(0, min(planned.seq_len, sequence.num_prompt_tokens) - planned.start)
        assert prefill <= self.config.max_prefill_tokens
        assert set(step.plan.scrub_blocks) >= self.dirty
        self.dirty.clear()
        self.check_order(step, ids, prefill)
        self.started.update((sequence.id, sequence) for sequence in step.sequences)
        worst = [-(-(s.max_num_tokens - 1) // self.blocks.block_size) for s in self.started.values()]
        assert sum(worst) <= self.blocks.num_blocks, "more is promised than there is"
        self.check_blocks()

    def check_order(self, step: Step, ids: list[str], prefill: int) -> None:
        """First come, first served; and who waits, waits for a reason."""
        arrivals = list(self.live)
        new = [name for name in ids if name not in self.started]
        waited = [name for name in arrivals if name not in self.started]
        assert new == waited[: len(new)]
        for name, sequence in self.started.items():
            decoding = sequence.num_computed_tokens >= sequence.num_prompt_tokens
            if decoding or prefill < self.config.max_prefill_tokens:
                assert name in ids, "a running sequence was left out"
        if self.policy == "static_batch":
            if not self.started:
                self.batch = set(arrivals[: self.config.max_num_seqs])
            assert set(new) <= self.batch, "a request joined a static batch that had begun"
            if self.started:
                return
        if len(new) < len(waited):
            running = [*self.started.values(), *(s for s in step.sequences if s.id in new)]
            assert (
                len(running) == self.config.max_num_seqs
                or prefill == self.config.max_prefill_tokens
                or not self.has_room(running, self.live[waited[len(new)]])
            ), "a request waits though place, blocks and budget are free"

    def has_room(self, running: list[Sequence], request: Request) -> bool:
        size, total = self.blocks.block_size, self.blocks.num_blocks
        needed = -(-(len(request.prompt_token_ids) + request.sampling.max_new_tokens - 1) // size)
        if self.paged:
            return sum(-(-(s.max_num_tokens - 1) // size) for s in running) + needed <= total
        used = {block for sequence in running for block in sequence.block_table}
        free = [block not in used for block in range(total)]
        return any(all(free[i : i + needed]) for i in range(total - needed + 1))

    def check_blocks(self) -> None:
        tables = [sequence.block_table for sequence in self.started.values()]
        used = [block for table in tables for block in table]
        assert len(used) == len(set(used)), "two sequences share a block"
        assert self.blocks.num_free + len(used) == self.blocks.num_blocks
        if not self.paged:
            assert all(table == list(range(table[0], table[0] + len(table))) for table in tables)
        assert self.scheduler.num_running == len(self.started)
        assert self.scheduler.num_waiting == len(self.live) - len(self.started)

    def take(self, output: RequestOutput) -> None:
        assert output.id in self.live, "an output after the end"
        self.tokens[output.id] += output.token_ids
        request = self.live[output.id]
        expected, reason = continue_alone(request)
        assert self.tokens[output.id] == expected[: len(self.tokens[output.id])]
        if output.finish_reason is not None:
            assert (self.tokens[output.id], output.finish_reason) == (expected, reason)
            computed = len(request.prompt_token_ids) + len(expected) - 1
            for position in range(computed):
                assert self.positions[output.id, position] == 1
            assert self.positions[output.id, computed] == 0
        if output.finished:
            self.forget(output.id)

    def forget(self, name: str) -> None:
        del self.live[name]
        self.started.pop(name, None)

    def abort_one(self, name: str) -> None:
        assert self.scheduler.abort(name)
        self.forget(name)
        self.check_blocks()

    def teardown(self) -> None:
        """Everything that was accepted comes to its end, and all blocks come back."""
        if not hasattr(self, "scheduler"):
            return
        bound = sum(len(r.prompt_token_ids) + r.sampling.max_new_tokens for r in self.live.values())
        for _ in range(bound + 1):
            self.step(set(), set())
        assert not self.live
        assert not self.scheduler.has_work
        assert self.scheduler.request_ids() == []
        assert self.blocks.num_free == self.blocks.num_blocks


class _PagedStream(_Stream):
    paged = True


class _ContiguousStream(_Stream):
    paged = False


class _StaticStream(_Stream):
    paged = True
    policy = "static_batch"


_SETTINGS = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestPagedStream = _PagedStream.TestCase
TestPagedStream.settings = _SETTINGS
TestContiguousStream = _ContiguousStream.TestCase
TestContiguousStream.settings = _SETTINGS
TestStaticStream = _StaticStream.TestCase
TestStaticStream.settings = _SETTINGS
