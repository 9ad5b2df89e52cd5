"""Every tenant the same share of tokens: the Virtual Token Counter of Sheng et al., OSDI 2024 (arXiv:2401.00588).

Each tenant has a counter of its tokens, weighted: of a prompt when it is admitted, of an output as they are computed.
The waiting tenant with the least is next, and inside a tenant the first that came. A tenant that had nothing waiting
and sends again starts at no less than the *floor*, the least counter of those that wait: being idle earns no credit,
having had much is remembered.

What is computed again after a preemption is not counted. It would charge a tenant for being preempted; and as the
counters rest while nothing new is computed, the order among running sequences rests too: the first in it is never
preempted, so somebody always gets on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.sequence import Sequence

PROMPT_WEIGHT = 1
OUTPUT_WEIGHT = 2
"""The paper's: a token of output costs about twice a token of prompt."""

MAX_IDLE_TENANTS = 4096
"""Tenants remembered with nothing waiting; beyond it, those that are the least ahead of the floor are forgotten."""

_SLACK = 64

_Place = tuple[int, int, str]
"""A tenant's counter, the number of its first waiting sequence, its name. What the heap holds may lag behind: counters
only grow, so an entry is at worst too early, which shows when it comes to the top."""


class _Tenant:
    """Changed by `Fair` only."""

    __slots__ = ("counter", "name", "place", "waiting")

    def __init__(self, name: str, counter: int) -> None:
        self.name = name
        self.counter = counter
        self.waiting = FirstComeFirstServed()
        self.place: _Place | None = None
        """Its entry in the heap that counts; others of this tenant are left over."""


class Fair:
    """Token-weighted shares among the tenants that wait."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        """Those that wait, and the others until the floor is seen to have reached them."""
        self._num_waiting = 0
        self._heap: list[_Place] = []
        """Of the tenants that wait."""
        self._most_tenants = _SLACK
        """When there are more, those that need not be remembered are forgotten."""
        self._floor = 0
        self._last = ""
        """Who was the last to have nothing waiting any more: while nobody waits, the floor is its counter."""

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for tenant in self._tenants.values():
            yield from tenant.waiting

    def served(self, tenant: str) -> int:
        """Weighted tokens of a tenant, no less than the floor: whoever is below it may be forgotten at any time."""
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
        if len(self._tenants) > self._most_tenants:
            self._forget()

    def remove(self, sequence: Sequence) -> None:
        tenant = self._tenants[sequence.request.tenant]
        tenant.waiting.remove(sequence)
        self._num_waiting -= 1
        if not tenant.waiting:
            self._last = tenant.name
            tenant.place = None

    def head(self) -> Sequence:
        return self._first().waiting.head()

    def admitted(self, sequence: Sequence) -> None:
        """Its prompt is counted, at once: who is admitted next in the same step depends on it. Neither what the
        prefix cache had of it is counted, nor what it is going to take over from a sibling."""
        if sequence.num_preemptions or (sequence.sibling is not None and not sequence.sibling.waits):
            return
        num_tokens = sequence.num_prompt_tokens - sequence.num_computed_tokens
        self._charge(sequence.request.tenant, PROMPT_WEIGHT * num_tokens)

    def computed(self, counts: Mapping[Sequence, int]) -> None:
        """Tokens of output are counted, each once."""
        costs: dict[str, int] = {}
        for sequence, num_tokens in counts.items():
            start = sequence.num_computed_tokens
            stop = start + num_tokens
            # Not `max`: this is done for hundreds of sequences in every step.
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
        """Its tenant's counter, so that tenants are served alike, however many sequences each has."""
        return self.served(sequence.request.tenant)

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """The latest of the tenant with the largest counter."""
        return max(candidates, key=lambda one: (self.served(one.request.tenant), one.number))

    def _charge(self, name: str, cost: int) -> None:
        tenant = self._tenant(name)
        tenant.counter = max(tenant.counter, self._floor) + cost

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, self._floor)
        return tenant

    def _first(self) -> _Tenant:
        """The tenant that is next; somebody waits."""
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
        """To the least counter of those that wait, else to that of the last that waited."""
        least = self._first().counter if self._num_waiting else self.served(self._last)
        self._floor = max(self._floor, least)

    def _forget(self) -> None:
        """Drop idle tenants that would be lifted to the floor anyway, and more where there are too many. Done again
        when there are twice as many: O(log tenants) for each that comes."""
        idle = [one for one in self._tenants.values() if not one.waiting]
        ahead = sorted((one for one in idle if one.counter > self._floor), key=lambda one: -one.counter)
        for tenant in {*idle} - {*ahead[:MAX_IDLE_TENANTS]}:
            del self._tenants[tenant.name]
        self._most_tenants = 2 * len(self._tenants) + _SLACK


def _place(tenant: _Tenant) -> _Place:
    return tenant.counter, tenant.waiting.head().number, tenant.name
