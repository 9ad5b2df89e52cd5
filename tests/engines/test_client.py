"""The engine client of the web process, against a real engine socket that a scripted engine serves from a thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from engines.client import ClientStream, EngineClient
from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    FinishReason,
    RequestOutput,
    SchedulerReply,
    SchedulerSettings,
)
from engines.engine_socket import EngineSocket
from engines.health import EngineState, StatusBoard
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.wire import (
    Abort,
    ConfigureScheduler,
    GetStats,
    InvocationOutputs,
    Outputs,
    Reply,
    Submit,
    ToEngine,
)
from tests.engines.mpi.fakes import make_request

_STATS = EngineStats(EngineInfo("m", "MPI", 1, "cpu", "fp32", 8, 8, 4, 2, 8, True), {"g": 1}, {"c": 2}, ())
Handler = Callable[[EngineSocket, bytes, ToEngine], None]


class _Engine:
    """A thread that owns an engine socket, records each message and passes it to `handle`."""

    def __init__(self, address: str, handle: Handler = lambda socket, client, message: None) -> None:
        self.messages: list[ToEngine] = []
        self.handle = handle
        self.calls: list[Callable[[EngineSocket, bytes], object]] = []
        """Functions for the thread to call with the client that sent the last message."""
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        socket = EngineSocket(self._address)
        client = b""
        while not self._stop.is_set():
            for client, message in socket.receive(0.01):
                self.messages.append(message)
                self.handle(socket, client, message)
            while client and self.calls:
                self.calls.pop(0)(socket, client)
        socket.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def heartbeats_stay_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board gets only one heartbeat in these tests, and must stay ready on a busy machine."""
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", 1e9)


@pytest.fixture
def board(tmp_path: Path) -> StatusBoard:
    board = StatusBoard.create(tmp_path / "status", 1)
    board.beat(0)
    board.set_state(EngineState.READY)
    return board


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[_Engine]:
    engine = _Engine(f"ipc://{tmp_path}/e.sock")
    yield engine
    engine.stop()


@pytest.fixture
def client(tmp_path: Path, board: StatusBoard) -> Iterator[EngineClient]:
    # gevent's clock stands still while other tests run, and its timeouts begin at that time.
    gevent.get_hub().loop.update_now()
    client = EngineClient(f"ipc://{tmp_path}/e.sock", tmp_path / "status")
    yield client
    client.close()


def _answer(*outputs: RequestOutput) -> Handler:
    """Return a handler that sends `outputs` for each submitted request, one message per output."""

    def handle(socket: EngineSocket, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Submit):
            for output in outputs:
                socket.send(client, Outputs([output]))

    return handle


def _wait(condition: Callable[[], bool]) -> None:
    with gevent.Timeout(200):
        while not condition():
            gevent.sleep(0.01)


def _collect(stream: ClientStream) -> list[RequestOutput]:
    outputs = []
    while True:
        output = stream.next(200)
        assert output is not None, "no output in time"
        outputs.append(output)
        if output.finished:
            return outputs


def test_a_wait_is_not_cut_short_by_computation_before_it() -> None:
    gevent.sleep(0.01)  # the event loop notes the time
    time.sleep(0.4)
    before = time.monotonic()
    assert ClientStream(RequestOutput).next(0.3) is None
    assert time.monotonic() - before >= 0.29


def test_many_greenlets_wait_at_the_same_time(engine: _Engine, client: EngineClient) -> None:
    """One message contains the outputs of many requests. Each stream receives only its own."""
    numbers = itertools.count()
    waiting: list[str] = []

    def handle(socket: EngineSocket, name: bytes, message: ToEngine) -> None:
        if isinstance(message, Submit):
            waiting.extend(request.id for request in message.requests)
        if len(waiting) == 20:
            for _ in range(5):
                socket.send(name, Outputs([RequestOutput(i, (next(numbers),)) for i in waiting]))
            socket.send(name, Outputs([RequestOutput(i, finish_reason=FinishReason.LENGTH) for i in waiting]))

    engine.handle = handle
    streams = [client.submit(make_request(str(i))) for i in range(20)]
    greenlets = [gevent.spawn(_collect, stream) for stream in streams]
    gevent.joinall(greenlets, timeout=60, raise_error=True)
    for i, greenlet in enumerate(greenlets):
        assert [o.token_ids for o in greenlet.value[:5]] == [(i + 20 * step,) for step in range(5)]
        assert all(output.id == str(i) for output in greenlet.value)


def test_requests_submitted_together_share_a_stream(
    engine: _Engine, client: EngineClient, board: StatusBoard
) -> None:
    """The requests arrive unchanged and in order."""
    all_fields = make_request("c", range(100), 7, stop=[3], arrival_time=12.5)
    requests = (make_request("a"), make_request("b"), all_fields)
    stream = client.submit(*requests)
    _wait(lambda: engine.messages == [Submit(requests)])
    client.abort("b", AbortReason.CLIENT_LEFT)
    done = [RequestOutput(i, (1,), finish_reason=FinishReason.LENGTH) for i in ("c", "b", "a")]
    engine.calls.append(lambda socket, name: socket.send(name, Outputs(done[:2])))
    assert stream.next(60) == done[0]
    board.set_state(EngineState.FAILED)
    output = stream.next(60)
    assert output is not None
    assert (output.id, output.error_kind) == ("a", "engine_died")


def _invoke(client: EngineClient, engine: _Engine, *pieces: InvocationOutput) -> list[InvocationOutput]:
    """Return the pieces of an answer of which none is read before the last one has arrived."""
    stream = client.invoke(Invocation("a", 0.0, {}, (("data", b""),)))
    engine.calls.append(lambda socket, name: socket.send(name, InvocationOutputs(list(pieces))) and None)
    engine.calls.append(lambda socket, name: socket.send(name, Reply(0, _STATS)) and None)
    assert client.stats(60) is not None
    read = []
    while (piece := stream.next(0.0)) is not None:
        read.append(piece)
    return read


@pytest.fixture
def unread_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("engines.client._MAX_UNREAD_BYTES", 100)
    return 100


def test_a_stream_that_its_client_does_not_read_is_aborted(
    engine: _Engine, client: EngineClient, unread_limit: int
) -> None:
    head = AnswerHead(200, "OK", ())
    pieces = [InvocationOutput("a", head), *(InvocationOutput("a", body=b"x" * 30) for _ in range(9))]
    *before, end = _invoke(client, engine, *pieces, InvocationOutput("a", last=True))
    assert before == pieces[:5]
    assert end.error_kind == "request_failed"
    assert "the client reads the stream more slowly than the handler sends it" in end.error_message
    _wait(lambda: Abort("a", AbortReason.FAILED) in engine.messages)


@pytest.mark.parametrize("whole", [True, False], ids=["in several pieces", "in one piece"])
def test_a_large_answer_without_a_stream_is_not_aborted(
    engine: _Engine, client: EngineClient, unread_limit: int, whole: bool
) -> None:
    head, body = AnswerHead(200, "OK", ()), b"x" * 300
    last = InvocationOutput("a", body=body, last=True)
    pieces = [InvocationOutput("a", head, body, whole=True), InvocationOutput("a", body=body), last]
    pieces = pieces if whole else [InvocationOutput("a", head, body, last=True)]
    assert _invoke(client, engine, *pieces) == pieces


def test_what_the_client_has_read_does_not_count(
    engine: _Engine, client: EngineClient, unread_limit: int
) -> None:
    stream = client.invoke(Invocation("a", 0.0, {}, (("data", b""),)))
    for _ in range(5):
        piece = InvocationOutput("a", body=b"x" * 90)
        engine.calls.append(lambda socket, name, piece=piece: socket.send(name, InvocationOutputs([piece])))
        assert stream.next(60) == piece


def test_next_returns_none_when_it_times_out(engine: _Engine, client: EngineClient) -> None:
    stream = client.submit(make_request("a"))
    assert stream.next(0.01) is None
    assert stream.next(-1.0) is None


def test_abort_is_sent_once_and_no_output_is_delivered_after_it(
    engine: _Engine, client: EngineClient
) -> None:
    aborted, other = client.submit(make_request("a")), client.submit(make_request("b"))
    _wait(lambda: len(engine.messages) == 2)
    client.abort("a", AbortReason.CLIENT_LEFT)
    client.abort("a", AbortReason.CLIENT_LEFT)
    engine.calls.append(lambda socket, name: socket.send(name, Outputs([RequestOutput("a", (1,))])))
    done = RequestOutput("b", (1,), finish_reason=FinishReason.LENGTH)
    engine.calls.append(lambda socket, name: socket.send(name, Outputs([done])))
    assert _collect(other) == [done]
    assert aborted.next(0.0) is None
    client.submit(make_request("last"))
    _wait(lambda: len(engine.messages) == 4)
    assert engine.messages.count(Abort("a", AbortReason.CLIENT_LEFT)) == 1


def test_abort_after_the_end_sends_nothing(engine: _Engine, client: EngineClient) -> None:
    engine.handle = _answer(RequestOutput("a", finish_reason=FinishReason.LENGTH))
    _collect(client.submit(make_request("a")))
    client.abort("a", AbortReason.CLIENT_LEFT)
    client.abort("never was", AbortReason.CLIENT_LEFT)
    client.submit(make_request("last"))
    _wait(lambda: len(engine.messages) == 2)
    assert not any(isinstance(message, Abort) for message in engine.messages)


def _schedule(socket: EngineSocket, name: bytes, message: ToEngine) -> None:
    """Answer like rank 0: one setting can be changed, the others are refused."""
    if isinstance(message, ConfigureScheduler):
        refused = {field: "fixed at the start" for field in message.changes if field != "max_waiting"}
        settings = SchedulerSettings(4, 64, 64, int(message.changes.get("max_waiting") or 1000))
        socket.send(name, Reply(message.token, SchedulerReply(settings, refused)))


def test_scheduler_settings_can_be_changed_and_read(engine: _Engine, client: EngineClient) -> None:
    engine.handle = _schedule
    state = client.configure_scheduler({"max_waiting": 7, "max_queued_tokens": None}, 60)
    assert state is not None
    assert state.settings == SchedulerSettings(4, 64, 64, 7)
    assert state.refused == {"max_queued_tokens": "fixed at the start"}
    current = client.configure_scheduler({}, 60)
    assert current is not None
    assert current.settings == SchedulerSettings(4, 64, 64, 1000)
    sent = [message for message in engine.messages if isinstance(message, ConfigureScheduler)]
    assert [message.changes for message in sent] == [{"max_waiting": 7, "max_queued_tokens": None}, {}]


def test_replies_are_none_when_the_engine_does_not_answer(
    engine: _Engine, client: EngineClient, board: StatusBoard
) -> None:
    assert client.stats(0.05) is None
    assert client.configure_scheduler({}, 0.05) is None
    board.set_state(EngineState.FAILED, "gone")
    assert client.configure_scheduler({}, 60) is None


def test_stats_and_scheduler_answers_do_not_mix(engine: _Engine, client: EngineClient) -> None:
    def handle(socket: EngineSocket, name: bytes, message: ToEngine) -> None:
        _schedule(socket, name, message)
        if isinstance(message, GetStats):
            socket.send(name, Reply(message.token, _STATS))

    engine.handle = handle
    greenlets = [gevent.spawn(client.stats, 60), gevent.spawn(client.configure_scheduler, {}, 60)]
    gevent.joinall(greenlets, timeout=200, raise_error=True)
    assert greenlets[0].value == _STATS
    assert greenlets[1].value.settings == SchedulerSettings(4, 64, 64, 1000)


def test_a_late_answer_is_not_mistaken_for_the_next_one(engine: _Engine, client: EngineClient) -> None:
    late = EngineStats(_STATS.info, {"late": 1.0}, {}, ())

    def handle(socket: EngineSocket, name: bytes, message: ToEngine) -> None:
        if isinstance(message, GetStats) and message.token > 0:
            socket.send(name, Reply(0, late))
            socket.send(name, Reply(message.token, _STATS))

    engine.handle = handle
    assert client.stats(0.05) is None
    assert client.stats(60) == _STATS


@pytest.mark.parametrize("state", [EngineState.FAILED, EngineState.STOPPED])
def test_all_waiting_requests_get_an_error_when_the_engine_dies(
    engine: _Engine, client: EngineClient, board: StatusBoard, state: EngineState
) -> None:
    streams = [client.submit(make_request(str(i))) for i in range(3)]
    _wait(lambda: len(engine.messages) == 3)
    board.set_state(state, "rank 1: killed")
    for i, stream in enumerate(streams):
        (output,) = _collect(stream)
        assert (output.id, output.error_kind) == (str(i), "engine_died")
        assert "process ended" in output.error_message
        assert "rank 1: killed" not in output.error_message  # the cause is for the operator
    assert not client.health().ready
    (refusal,) = _collect(client.submit(make_request("late")))
    assert refusal.error_kind == "engine_died"
    assert client.stats(5) is None


def test_outputs_sent_before_the_engine_stopped_are_delivered(
    engine: _Engine, client: EngineClient, board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if a new request arrives at that moment. Only the new request gets an error immediately."""
    monkeypatch.setattr("engines.client._LAST_OUTPUTS_SECONDS", 200.0)  # long enough for a busy machine
    stream = client.submit(make_request("a"))
    _wait(lambda: len(engine.messages) == 1)
    done = RequestOutput("a", (1, 2), finish_reason=FinishReason.LENGTH)
    sent = threading.Event()

    def finish(socket: EngineSocket, name: bytes) -> None:
        socket.send(name, Outputs([done]))
        board.set_state(EngineState.STOPPED)
        sent.set()

    engine.calls.append(finish)
    # Blocks this thread and all its greenlets, so the output stays unread in the socket.
    assert sent.wait(60)
    (refusal,) = _collect(client.submit(make_request("late")))
    assert refusal.error_kind == "engine_died"
    assert _collect(stream) == [done]


def test_a_request_can_be_submitted_before_the_engine_listens(tmp_path: Path, client: EngineClient) -> None:
    stream = client.submit(make_request("a"))
    done = RequestOutput("a", finish_reason=FinishReason.LENGTH)
    engine = _Engine(f"ipc://{tmp_path}/e.sock", _answer(done))  # receives the request as soon as it listens
    try:
        assert _collect(stream) == [done]
    finally:
        engine.stop()


def test_health_comes_from_the_status_board(client: EngineClient, board: StatusBoard) -> None:
    assert client.health().ready
    board.set_state(EngineState.DRAINING)
    assert client.health().state is EngineState.DRAINING
    assert not client.health().ready


def test_the_client_follows_a_restarted_engine(tmp_path: Path) -> None:
    """Requests of the dead engine fail, unread messages are dropped, and the new engine serves the next requests."""
    path, address = tmp_path / "status", f"ipc://{tmp_path}/e.sock"
    board = StatusBoard.create(path, 1)
    client = EngineClient(address, path)
    try:
        lost = client.submit(make_request("lost"))  # no engine listens, so the message stays in the socket
        board.set_state(EngineState.FAILED, "killed")
        successor = StatusBoard.create(tmp_path / "status.new", 1)
        (tmp_path / "status.new").replace(path)
        (output,) = _collect(lost)
        assert output.error_kind == "engine_died"
        successor.beat(0)
        successor.set_state(EngineState.READY)
        _wait(lambda: client.health().ready and client.num_restarts == 1)
        done = RequestOutput("next", finish_reason=FinishReason.LENGTH)
        engine = _Engine(address, _answer(done))
        try:
            assert _collect(client.submit(make_request("next"))) == [done]
            assert engine.messages == [Submit((make_request("next"),))]
        finally:
            engine.stop()
    finally:
        client.close()
