"""Which requests make the next batch, and when it leaves.

Knows neither tensors nor a clock: the time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from engines.config import BatchConfig
from engines.core import Request
from engines.errors import Overloaded


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    since: float


class DynamicBatcher:
    """Requests that wait for a batch. First come, first served.

    A batch leaves when it is full, or `max_batch_delay` after the later of two moments: its oldest request's arrival,
    and the end of the batch before it. So what came while a batch ran has time to gather company too.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._free_since: float | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_free(self) -> bool:
        """No batch runs, and one could."""
        return self._free_since is not None

    def add(self, request: Request, now: float) -> None:
        """Queue a request.

        Raises:
            Overloaded: `max_waiting` requests wait already. While no batch runs, those of the batch that is being
                filled do not count: a burst on an idle server is no full queue.
        """
        places = self._config.batch_size if self._free_since is not None else 0
        if len(self._waiting) - places >= self._config.max_waiting:
            raise Overloaded(
                f"the queue is full: {self._config.max_waiting} requests are waiting already (job_queue_size)"
            )
        self._waiting[request.id] = _Waiting(request, now)

    def abort(self, request_id: str) -> bool:
        """Forget a request; False when it does not wait here (any more)."""
        return self._waiting.pop(request_id, None) is not None

    def set_free(self, now: float) -> None:
        """No batch runs from now on."""
        self._free_since = now

    def set_busy(self) -> None:
        """No batch can be run until `set_free`. `take` sees to it itself."""
        self._free_since = None

    def seconds_until_due(self, now: float) -> float | None:
        """How long until the next batch leaves if nobody else comes; None while one runs, or when nobody waits."""
        if self._free_since is None or not self._waiting:
            return None
        if len(self._waiting) >= self._config.batch_size:
            return 0.0
        oldest = next(iter(self._waiting.values())).since
        return max(0.0, max(oldest, self._free_since) + self._config.max_batch_delay - now)

    def take(self, now: float) -> list[Request] | None:
        """The batch that leaves now, 1 to `batch_size` requests, or None."""
        if self.seconds_until_due(now) != 0.0:
            return None
        self._free_since = None
        count = min(len(self._waiting), self._config.batch_size)
        return [self._waiting.popitem(last=False)[1].request for _ in range(count)]
