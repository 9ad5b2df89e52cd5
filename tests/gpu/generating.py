"""A batch of sequences that are all decoding, for measurements of any length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engines.core import AbortReason
from tests.gpu.engine import Engine, Running, greedy, random_prompts


class DecodingBatch:
    """Sequences whose prompts are computed. Every step decodes one token of each."""

    def __init__(self, running: Running, lengths: dict[str, int]) -> None:
        """lengths: prompt length by request id."""
        self._running = running
        self._lengths = lengths
        self._started: set[str] = set()
        while len(self._started) < len(lengths):
            self.step()

    def step(self) -> None:
        for output in self._running.core.step():
            assert not output.error_kind, output.error_message
            self._started.add(output.id)
            self._lengths[output.id] += len(output.token_ids)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens of a sequence, its prompt included."""
        return sum(self._lengths.values()) / len(self._lengths)


@contextmanager
def decoding_batch(engine: Engine, batch: int, prompt_len: int) -> Iterator[DecodingBatch]:
    """Start the sequences, and compute all prompts before the caller's first step."""
    running = engine.start()
    lengths: dict[str, int] = {}
    for i, prompt in enumerate(random_prompts(engine.config.vocab_size, (prompt_len,) * batch, 4)):
        lengths[f"generating {i}"] = prompt_len
        running.core.add(greedy(f"generating {i}", prompt, engine.limits.max_model_len - prompt_len))
    yield DecodingBatch(running, lengths)
    assert running.scheduler.num_preemptions == 0
    for request_id in running.core.request_ids():
        running.core.abort(request_id, AbortReason.SHUTDOWN)
    while running.core.has_work:
        running.core.step()
