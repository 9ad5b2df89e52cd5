"""Equal shares of tokens for all tenants: the Virtual Token Counter of Sheng et al., OSDI 2024 (arXiv:2401.00588).

Each tenant has a counter of weighted tokens. Prompt tokens count at admission, output tokens when they are computed.
The waiting tenant with the smallest counter is next; within a tenant, sequences go by arrival. A tenant that had
nothing waiting and sends again starts at the *floor* or above. The floor is the smallest counter of the waiting
tenants. So idle time earns no credit, and past usage is remembered.

Tokens recomputed after a preemption are not counted, because that would charge a tenant for being preempted. Counters
also stay the same while nothing new is computed, and with them the order among running sequences. The first sequence in
that order is never preempted, so at least one sequence always makes progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.sequence import Sequence

PROMPT_WEIGHT = 1
OUTPUT_WEIGHT = 2
"""Weights from the paper: an output token costs about twice as much as a prompt token."""

MAX_IDLE_TENANTS = 4096
"""Maximum number of tenants remembered with nothing waiting. Beyond it, the tenants least ahead of the floor are
forgotten."""

_SLACK = 64

_Place = tuple[int, int, str]
"""A tenant's counter, the number of its first waiting sequence, and its name. Heap entries may be outdated: counters
only grow, so an entry is at worst too early, which is corrected when it reaches the top."""


class _Tenant:
    """State of one tenant. Owned by `Fair`; nothing else modifies it."""

    __slots__ = ("counter", "name", "place", "waiting")

    def __init__(self, name: str, counter: int) -> None:
        self.name = name
        self.counter = counter
        self.waiting = FirstComeFirstServed()
        self.place: _Place | None = None
        """The valid heap entry of the tenant; its other entries are stale."""


class Fair:
    """Token-weighted shares among the waiting tenants."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        """Waiting tenants, and idle tenants whose counter may still be above the floor."""
        self._num_waiting = 0
        self._heap: list[_Place] = []
        """Heap of places of the waiting tenants."""
        self._max_tenants = _SLACK
        """Number of tenants above which idle ones are dropped, see `_forget_idle`."""
        self._floor = 0
        self._last_waiting = ""
        """Name of the last tenant that ran out of waiting sequences. While no tenant waits, the floor is its
        counter."""

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for tenant in self._tenants.values():
            yield from tenant.waiting

    def weighted_tokens(self, tenant: str) -> int:
        """Return the weighted tokens of a tenant, at least the floor. A tenant below the floor may be forgotten at
        any time."""
        known = self._tenants.get(tenant)
        return max(known.counter, self._floor) if known else self._floor

    def add(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence.request.tenant)
        if not tenant.waiting:
            self._raise_floor()
            tenant.counter = max(tenant.counter, self._floor)
        tenant.waiting.add(sequence)
        self._num_waiting += 1
        if tenant.waiting.head() is sequence:
            tenant.place = _place(tenant)
            heappush(self._heap, tenant.place)
            if len(self._heap) > 2 * len(self._tenants) + _SLACK:
                self._heap = [one.place for one in self._tenants.values() if one.place is not None]
                heapify(self._heap)
        if len(self._tenants) > self._max_tenants:
            self._forget_idle()

    def remove(self, sequence: Sequence) -> None:
        tenant = self._tenants[sequence.request.tenant]
        tenant.waiting.remove(sequence)
        self._num_waiting -= 1
        if not tenant.waiting:
            self._last_waiting = tenant.name
            tenant.place = None

    def head(self) -> Sequence:
        return self._next_tenant().waiting.head()

    def record_admission(self, sequence: Sequence) -> None:
        """Charge the prompt at once: the next admission in the same step depends on it. Tokens found in the prefix
        cache and tokens to be taken over from a sibling are not charged."""
        if sequence.num_preemptions or (sequence.sibling is not None and not sequence.sibling.is_waiting):
            return
        num_tokens = sequence.num_prompt_tokens - sequence.num_computed_tokens
        self._charge(sequence.request.tenant, PROMPT_WEIGHT * num_tokens)

    def record_computed(self, counts: Mapping[Sequence, int]) -> None:
        """Charge output tokens, each once."""
        costs: dict[str, int] = {}
        for sequence, num_tokens in counts.items():
            start = sequence.num_computed_tokens
            stop = start + num_tokens
            # Not `max`: this runs for hundreds of sequences in every step.
            first = sequence.num_prompt_tokens
            if first < sequence.num_ever_computed:
                first = sequence.num_ever_computed
            if start > first:
                first = start
            if first < stop:
                tenant = sequence.request.tenant
                costs[tenant] = costs.get(tenant, 0) + OUTPUT_WEIGHT * (stop - first)
        for tenant, cost in costs.items():
            self._charge(tenant, cost)

    def precedence(self, sequence: Sequence) -> int:
        """Return the counter of the sequence's tenant, so that tenants get equal service regardless of their number
        of sequences."""
        return self.weighted_tokens(sequence.request.tenant)

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """Return the latest sequence of the tenant with the largest counter."""
        return max(candidates, key=lambda one: (self.weighted_tokens(one.request.tenant), one.number))

    def _charge(self, name: str, cost: int) -> None:
        tenant = self._tenant(name)
        tenant.counter = max(tenant.counter, self._floor) + cost

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, self._floor)
        return tenant

    def _next_tenant(self) -> _Tenant:
        """Return the tenant that is next. At least one tenant must be waiting."""
        heap = self._heap
        while True:
            place = heap[0]
            tenant = self._tenants.get(place[2])
            if tenant is None or tenant.place is not place:
                heappop(heap)
                continue
            now = _place(tenant)
            if now == place:
                return tenant
            tenant.place = now
            heapreplace(heap, now)

    def _raise_floor(self) -> None:
        """Raise the floor to the smallest counter of the waiting tenants, or else to the counter of the last tenant
        that waited."""
        lowest = (
            self._next_tenant().counter if self._num_waiting else self.weighted_tokens(self._last_waiting)
        )
        self._floor = max(self._floor, lowest)

    def _forget_idle(self) -> None:
        """Drop idle tenants that would be raised to the floor anyway, and more when there are too many. Repeated
        when the number of tenants has doubled, so the amortized cost is O(log tenants) for each new tenant."""
        idle = [one for one in self._tenants.values() if not one.waiting]
        ahead = sorted((one for one in idle if one.counter > self._floor), key=lambda one: -one.counter)
        for tenant in {*idle} - {*ahead[:MAX_IDLE_TENANTS]}:
            del self._tenants[tenant.name]
        self._max_tenants = 2 * len(self._tenants) + _SLACK


def _place(tenant: _Tenant) -> _Place:
    return tenant.counter, tenant.waiting.head().number, tenant.name
