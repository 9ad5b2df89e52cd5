"""Dynamic batching: which requests form the next batch, and when it starts. The caller passes the time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from engines.config import BatchConfig
from engines.errors import Overloaded, TooManyOutputs


class HasId(Protocol):
    """An object with a request id: a request, or a part of its response."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)

MAX_WAITING_BYTES = 1 << 30
"""Maximum bytes of the bodies of all waiting requests. A single one may always wait."""


class DynamicBatcher(Generic[Item]):
    """First-come, first-served queue of the requests that wait for a batch.

    A batch starts when it is full, or `max_batch_delay` after its oldest request arrived or the previous batch ended,
    whichever is later. Requests that arrived while a batch ran therefore also wait for more requests.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._waiting: OrderedDict[str, tuple[Item, float, int]] = OrderedDict()
        """Requests, the times at which they were queued, and the bytes of their bodies, by id."""
        self._waiting_bytes = 0
        self._free_since: float | None = None
        self._num_free = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_free(self) -> bool:
        """Whether no batch is running, so that one could start."""
        return self._free_since is not None

    def add(self, request: Item, now: float, num_together: int = 1, num_bytes: int = 0) -> None:
        """Queue a request. num_together: number of requests that belong to the same HTTP request. num_bytes: bytes of
        the body that the request holds.

        Raises:
            TooManyOutputs: even an idle server has no room for all of them.
            Overloaded: `max_waiting` requests are waiting already, or their bodies are too large. Requests that fit
                into the batches that may start now do not count as waiting, so that a burst on an idle server does not
                fill the queue. Their bodies count.
        """
        batch_size, max_waiting = self._config.batch_size, self._config.max_waiting
        max_together = batch_size + max_waiting
        if num_together > max_together:
            raise TooManyOutputs(
                f"given {num_together} outputs in one request; accepted: at most {max_together}, of which"
                f" {batch_size} run (batch_size) and {max_waiting} wait (job_queue_size)"
            )
        places = batch_size * self._num_free
        if len(self._waiting) - places >= max_waiting:
            raise Overloaded(
                f"the queue is full: {max_waiting} requests are already waiting (job_queue_size)"
            )
        if self._waiting and self._waiting_bytes + num_bytes > MAX_WAITING_BYTES:
            raise Overloaded(
                f"the queue is full: requests with bodies of {self._waiting_bytes} bytes are already waiting, and this"
                f" one's {num_bytes} would exceed the limit of {MAX_WAITING_BYTES}"
            )
        self._waiting[request.id] = request, now, num_bytes
        self._waiting_bytes += num_bytes

    def abort(self, request_id: str) -> bool:
        """Remove a request from the queue; return False if it is not there."""
        if request_id not in self._waiting:
            return False
        self._remove(request_id)
        return True

    def set_batch_size(self, batch_size: int) -> None:
        """Change the maximum number of requests in a batch."""
        self._config = replace(self._config, batch_size=batch_size)

    def set_free(self, now: float, num_batches: int = 1) -> None:
        """Record that the running batch has ended, so that `num_batches` others may start."""
        if self._free_since is None:
            self._free_since = now
        self._num_free = num_batches

    def set_busy(self) -> None:
        """Start no batch until `set_free` is called. `pop_batch` calls `set_busy` itself."""
        self._free_since = None
        self._num_free = 0

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until the next batch starts if no request arrives; None if one runs or nothing waits."""
        if self._free_since is None or not self._waiting:
            return None
        if len(self._waiting) >= self._config.batch_size:
            return 0.0
        _, oldest, _ = next(iter(self._waiting.values()))
        return max(0.0, max(oldest, self._free_since) + self._config.max_batch_delay - now)

    def pop_batch(self, now: float) -> list[Item] | None:
        """Return the batch that starts now (1 to `batch_size` requests), or None."""
        if self.seconds_until_due(now) != 0.0:
            return None
        self.set_busy()
        count = min(len(self._waiting), self._config.batch_size)
        return [self._remove(next(iter(self._waiting))) for _ in range(count)]

    def _remove(self, request_id: str) -> Item:
        request, _, num_bytes = self._waiting.pop(request_id)
        self._waiting_bytes -= num_bytes
        return request
