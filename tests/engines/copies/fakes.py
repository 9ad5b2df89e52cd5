"""Fake engines for tests of copies. The test decides the outputs of their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engines.client import ClientStream
from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    FinishReason,
    HistogramData,
    Request,
    RequestOutput,
    SchedulerReply,
    SchedulerSettings,
    SettingValue,
)
from engines.errors import EngineDied
from engines.health import EngineState, Health

SERVES = Health(EngineState.READY, "", 0.0)


class FakeCopy:
    """An `Engine` that records its requests and aborts."""

    def __init__(self) -> None:
        self.state = SERVES
        self.num_restarts = 0
        self.requests: list[Request] = []
        """All submitted requests."""
        self.aborted: list[str] = []
        self.streams: dict[str, ClientStream[RequestOutput]] = {}
        """Streams of the requests in flight."""
        self.settings: SchedulerSettings | None = SchedulerSettings(32, 256, 256, 1000)
        self.refused: dict[str, str] = {}
        self.silent_for: set[str] = set()
        """Settings that it applies without a reply."""
        self.before_change: Callable[[], object] = lambda: None
        """Called before a change of settings is applied."""

    def submit(self, *requests: Request) -> ClientStream[RequestOutput]:
        raise AssertionError("ReplicaSet submits with a stream of its own")

    def submit_to(self, stream: ClientStream[RequestOutput], *requests: Request) -> None:
        self.requests += requests
        self.streams |= dict.fromkeys((request.id for request in requests), stream)
        if self.state.state is EngineState.FAILED:
            self.fail_all()

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborted.append(request_id)
        self.streams.pop(request_id, None)

    def health(self) -> Health:
        return self.state

    def stats(self, timeout: float) -> EngineStats | None:
        number = float(len(self.requests))
        return EngineStats(
            EngineInfo("m", "MPI", 1, "cpu", "fp32", 100, 400, 16, 32, 256, True),
            {"lmi_requests_running": float(len(self.streams)), "lmi_kv_use": number / 10},
            {"lmi_steps_total": number},
            (HistogramData("lmi_step_seconds", (1.0,), (len(self.requests), 1), 0.5, {"part": "attention"}),),
        )

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerReply | None:
        if changes:
            self.before_change()
        refused = {field: why for field, why in self.refused.items() if field in changes}
        if self.settings is not None and not refused:
            self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        if self.silent_for & changes.keys():
            return None
        return SchedulerReply(self.settings, refused)

    def finish(self, request_id: str) -> None:
        self.streams.pop(request_id).put(RequestOutput(request_id, finish_reason=FinishReason.LENGTH))

    def fail_all(self) -> None:
        for request_id, stream in self.streams.items():
            stream.put(RequestOutput(request_id, error_kind=EngineDied.kind))
        self.streams.clear()
