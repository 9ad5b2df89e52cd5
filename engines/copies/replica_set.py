"""Several copies of an engine as one `Engine`: each request goes to the copy with the least left to compute.

The load of a copy is a number of tokens: for each of its requests, the prompt tokens that are not in its prefix cache
and the output tokens that are still expected. So the copy with the longest known prefix is chosen, unless its load
exceeds that of another copy by more than the prefix saves. A copy without a free place in its batch is chosen only if
no copy has one. Further answers to one prompt go to the copy of the first one, which has the prompt's pages. Each web
process counts its own requests only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import gevent

from engines.base import Engine, RequestStream
from engines.client import ClientStream
from engines.copies.known_prefixes import KnownPrefixes
from engines.copies.settings_lock import settings_lock
from engines.core import (
    AbortReason,
    EngineStats,
    Request,
    RequestOutput,
    SchedulerReply,
    SchedulerSettings,
    SettingValue,
)
from engines.errors import Unavailable
from engines.health import EngineState, Health

_EXPECTED_OUTPUT = 256
"""Maximum number of output tokens counted for a request: few answers are as long as `max_new_tokens` allows."""
_STATES = (
    EngineState.READY,
    EngineState.STARTING,
    EngineState.DRAINING,
    EngineState.STOPPED,
    EngineState.FAILED,
)
"""States in order of precedence: the state of the set is the first one that a copy has."""

Result = TypeVar("Result")


class CopyEngine(Engine, Protocol):
    """An engine that can send its outputs to a stream shared with other engines."""

    num_restarts: int
    """Number of restarts of the engine. After each, its cache is empty."""

    def submit_to(self, stream: ClientStream[RequestOutput], *requests: Request) -> None:
        """Submit requests like `submit`, with outputs to this stream."""


@dataclass(slots=True)
class _Replica:
    """One copy. Mutable: owned by the set."""

    engine: CopyEngine
    number: int
    """Index of the copy, from 0."""
    load: int = 0
    """Tokens still to be computed."""
    num_open: int = 0
    """Requests that have not ended."""
    turn: int = 0
    """Number of the latest request that the copy was chosen for, so that copies take turns."""
    num_restarts: int = 0
    """Restarts of the engine at the latest choice."""


@dataclass(slots=True)
class _RequestLoad:
    """A request that has not ended. Mutable: owned by the set."""

    copy: _Replica
    tokens: int
    """The request's part of the copy's load."""
    output: int
    """Output tokens that are still expected."""


class _CountedStream(ClientStream[RequestOutput]):
    """A stream that reports each output when it is taken."""

    def __init__(self, count: Callable[[RequestOutput], None]) -> None:
        super().__init__(RequestOutput)
        self._count = count

    def next(self, timeout: float) -> RequestOutput | None:
        output = super().next(timeout)
        if output is not None:
            self._count(output)
        return output


class ReplicaSet:
    """An `Engine` made of several engines with the same configuration, for the greenlets of one thread."""

    def __init__(
        self, engines: Sequence[CopyEngine], prefixes: KnownPrefixes, places: int, lock_file: Path
    ) -> None:
        """places: requests of this process that a copy can run at the same time.
        lock_file: the same for all web processes, so that only one at a time changes settings.
        """
        self._replicas = [_Replica(engine, number) for number, engine in enumerate(engines)]
        self._prefixes = prefixes
        self._places = places
        self._lock_file = lock_file
        self._request_loads: dict[str, _RequestLoad] = {}
        self._turns = 0

    def submit(self, *requests: Request) -> RequestStream:
        stream = _CountedStream(self._count)
        self._forget_lost_caches()
        serving = self._serving()
        by_copy: dict[int, list[Request]] = {}
        for request in requests:
            sibling = self._request_loads.get(request.same_prompt_as)
            copy, prompt_tokens = (sibling.copy, 0) if sibling else self._choose(serving, request)
            output = min(request.sampling.max_new_tokens, _EXPECTED_OUTPUT)
            self._request_loads[request.id] = _RequestLoad(copy, prompt_tokens + output, output)
            copy.load += prompt_tokens + output
            copy.num_open += 1
            by_copy.setdefault(copy.number, []).append(request)
        for number, own in by_copy.items():
            self._replicas[number].engine.submit_to(stream, *own)
        return stream

    def abort(self, request_id: str, reason: AbortReason) -> None:
        if (load := self._drop(request_id)) is not None:
            load.copy.engine.abort(request_id, reason)

    def health(self) -> Health:
        """Return the health of the best copy, with that of all copies."""
        each = tuple(copy.engine.health() for copy in self._replicas)
        return replace(min(each, key=_readiness_key), copies=each)

    def stats(self, timeout: float) -> EngineStats | None:
        """Return the stats of each copy that replies, without sums: a sum would drop whenever a copy does not reply."""
        answering = (EngineState.READY, EngineState.DRAINING)
        replies = self._call_all(
            lambda engine: engine.stats(timeout) if engine.health().state in answering else None
        )
        by_copy = {str(number): stats for number, stats in enumerate(replies, 1) if stats is not None}
        if not by_copy:
            return None
        num_serving = sum(copy.engine.health().ready for copy in self._replicas)
        gauges = {"lmi_copies": float(len(replies)), "lmi_copies_serving": float(num_serving)}
        info = next(iter(by_copy.values())).info
        return EngineStats(info, gauges, counters={}, histograms=(), copies=by_copy)

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerReply | None:
        """Change all copies or none: if one refuses or does not reply, each copy gets its own old values back.

        Raises: Unavailable: not all copies serve, or another change takes too long.
        """
        if not changes:
            return self._serving()[0].engine.configure_scheduler(changes, timeout)
        with settings_lock(self._lock_file, timeout, gevent.sleep):
            return self._change_settings(changes, timeout)

    def _change_settings(self, changes: Mapping[str, SettingValue], timeout: float) -> SchedulerReply | None:
        if idle := [str(copy.number + 1) for copy in self._replicas if not copy.engine.health().ready]:
            *others, last = idle
            which, verb = (
                (f"copies {', '.join(others)} and {last}", "are") if others else (f"copy {last}", "is")
            )
            raise Unavailable(
                f"{which} of {len(self._replicas)} {verb} not ready; settings can only be changed in all copies"
                " together: try again"
            )
        before: list[SchedulerSettings] = []
        for reply in self._call_all(lambda engine: engine.configure_scheduler({}, timeout)):
            if reply is None or reply.settings is None:
                return reply
            before.append(reply.settings)
        answers = self._call_all(lambda engine: engine.configure_scheduler(changes, timeout))
        replies = [answer for answer in answers if answer is not None]
        refused = {field: why for answer in replies for field, why in answer.refused.items()}
        if len(replies) == len(answers) and not refused:
            return replies[0]
        roll_backs = [
            gevent.spawn(
                copy.engine.configure_scheduler, {field: getattr(old, field) for field in changes}, timeout
            )
            for copy, old, answer in zip(self._replicas, before, answers, strict=True)
            if answer is None or not answer.refused
        ]
        gevent.joinall(roll_backs, raise_error=True)
        return SchedulerReply(before[0], refused) if refused else None

    def _choose(self, serving: Sequence[_Replica], request: Request) -> tuple[_Replica, int]:
        """Choose the copy for a request. Returns the copy, and the number of prompt tokens that it has to compute."""
        hashes = self._prefixes.block_hashes(request.tenant, request.prompt_token_ids)
        known = self._prefixes.matched_tokens(hashes)
        best = min(
            serving,
            key=lambda copy: (copy.num_open >= self._places, copy.load - known[copy.number], copy.turn),
        )
        self._turns += 1
        best.turn = self._turns
        self._prefixes.add(hashes, best.number)
        return best, len(request.prompt_token_ids) - known[best.number]

    def _serving(self) -> list[_Replica]:
        """Return the copies that serve. Without any, return the one closest to it: its engine reports the error."""
        healths = [copy.engine.health() for copy in self._replicas]
        nearest = min(self._replicas, key=lambda copy: _readiness_key(healths[copy.number]))
        return [copy for copy in self._replicas if healths[copy.number].ready] or [nearest]

    def _forget_lost_caches(self) -> None:
        """Forget the prefixes of copies that were restarted since the last call."""
        for copy in self._replicas:
            if copy.num_restarts != copy.engine.num_restarts:
                copy.num_restarts = copy.engine.num_restarts
                self._prefixes.forget(copy.number)

    def _count(self, output: RequestOutput) -> None:
        if output.finished:
            self._drop(output.id)
        elif (load := self._request_loads.get(output.id)) is not None:
            # The prompt has been computed. While the request runs, it counts as at least one token.
            load.output = max(1, load.output - len(output.token_ids))
            load.copy.load += load.output - load.tokens
            load.tokens = load.output

    def _drop(self, request_id: str) -> _RequestLoad | None:
        load = self._request_loads.pop(request_id, None)
        if load is not None:
            load.copy.load -= load.tokens
            load.copy.num_open -= 1
        return load

    def _call_all(self, call: Callable[[Engine], Result]) -> list[Result]:
        """Call a function with all engines at once, and return the results in order."""
        greenlets = [gevent.spawn(call, copy.engine) for copy in self._replicas]
        gevent.joinall(greenlets, raise_error=True)
        return [greenlet.value for greenlet in greenlets]


def _readiness_key(health: Health) -> tuple[bool, int]:
    """Order copies by how far they are from serving."""
    return not health.ready, _STATES.index(health.state)
