"""Dynamic batching: which requests form the next batch, and when it starts. The time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from engines.config import BatchConfig
from engines.errors import Overloaded


class HasId(Protocol):
    """A request, or a part of the answer to one."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)


class DynamicBatcher(Generic[Item]):
    """The queue of requests that wait for a batch, first come, first served.

    A batch starts when it is full, or `max_batch_delay` after its oldest request arrived or the batch before it ended,
    whichever is later. So requests that arrived while a batch ran wait for others, too.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._waiting: OrderedDict[str, tuple[Item, float]] = OrderedDict()
        """Requests and the times of their arrival here, by id."""
        self._free_since: float | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_free(self) -> bool:
        """Whether a batch could start now: none runs."""
        return self._free_since is not None

    def add(self, request: Item, now: float) -> None:
        """Queue a request.

        Raises:
            Overloaded: `max_waiting` requests wait already. While no batch runs, those that fill the next batch do not
                count: a burst on an idle server is not a full queue.
        """
        places = self._config.batch_size if self._free_since is not None else 0
        if len(self._waiting) - places >= self._config.max_waiting:
            raise Overloaded(
                f"the queue is full: {self._config.max_waiting} requests are waiting already (job_queue_size)"
            )
        self._waiting[request.id] = request, now

    def abort(self, request_id: str) -> bool:
        """Forget a request; return False when it is not in the queue."""
        return self._waiting.pop(request_id, None) is not None

    def set_free(self, now: float) -> None:
        """A batch has ended, and another may start."""
        self._free_since = now

    def set_busy(self) -> None:
        """No batch may start until `set_free`. `take` calls this itself."""
        self._free_since = None

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until the next batch starts if no request arrives; None while one runs or none waits."""
        if self._free_since is None or not self._waiting:
            return None
        if len(self._waiting) >= self._config.batch_size:
            return 0.0
        _, oldest = next(iter(self._waiting.values()))
        return max(0.0, max(oldest, self._free_since) + self._config.max_batch_delay - now)

    def take(self, now: float) -> list[Item] | None:
        """Return the batch that starts now, 1 to `batch_size` requests, or None."""
        if self.seconds_until_due(now) != 0.0:
            return None
        self.set_busy()
        count = min(len(self._waiting), self._config.batch_size)
        return [self._waiting.popitem(last=False)[1][0] for _ in range(count)]
