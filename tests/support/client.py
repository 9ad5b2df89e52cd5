"""A plain HTTP client that can leave at any moment, and tells how an answer ended."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.metrics import Metrics, parse_metrics, wait_metrics
from tests.support.waiting import wait_until

DEFAULT_TIMEOUT = 120.0
Json = Any


class Ending(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETE = "complete"
    TOLD = "told"
    """An error status, or an error record as the stream's last."""
    CUT = "cut"
    """The connection closed without a word."""
    HUNG = "hung"
    """Nothing came until the client's time was over."""
    LEFT = "left"
    """The client itself went away."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: str

    def json(self) -> Json:
        return json.loads(self.body)


class Call:
    """One request on its own connection. A context manager: leaving it closes the connection."""

    def __init__(self, base_url: str, timeout: float) -> None:
        address = urlsplit(base_url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout)
        self._response: http.client.HTTPResponse | None = None

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        self._connection.request(method, path, body, dict(headers))

    def set_timeout(self, seconds: float) -> None:
        """From now on, waiting longer than this for the next bytes raises `TimeoutError`."""
        if self._connection.sock is not None:
            self._connection.sock.settimeout(max(seconds, 0.001))

    def response(self) -> http.client.HTTPResponse:
        """Wait for the status line and the headers."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def read(self) -> Answer:
        response = self.response()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read().decode())

    def lines(self) -> Iterator[str]:
        """The body's lines as they come, without their ends."""
        response = self.response()
        while line := response.readline():
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True)
class Outcome:
    """What a client got on `/invocations`, whole or streamed. Filled while the answer comes."""

    ending: Ending = Ending.HUNG
    status: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    error: str = ""

    def describe(self) -> str:
        told = f"{self.finish_reason}{self.error}"
        return f"{self.ending} status={self.status} tokens={len(self.token_ids)} {told}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to `/invocations`, and when its client loses patience."""

    inputs: str
    parameters: Mapping[str, Json] = field(default_factory=dict)
    stream: bool = False
    leave_after: float | None = None
    """Leave after waiting so many seconds for bytes."""
    leave_at_record: int | None = None
    """Leave a stream when this record, counted from 1, has come and was not the last."""

    def body(self) -> Json:
        return {
            "inputs": self.inputs,
            "parameters": {"details": True, **self.parameters},
            "stream": self.stream,
        }


class Client:
    """Requests to one server."""

    def __init__(self, base_url: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.base_url = base_url
        self.timeout = timeout

    def call(
        self,
        method: str,
        path: str,
        body: Json | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Send a request (bytes as they are, else as JSON); what comes back is the caller's to read."""
        call = Call(self.base_url, self.timeout if timeout is None else timeout)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        try:
            call.send(method, path, data, {**sent, **(headers or {})})
        except BaseException:
            call.close()
            raise
        return call

    def get(
        self, path: str, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        with self.call("GET", path, headers=headers, timeout=timeout) as call:
            return call.read()

    def post(self, path: str, body: Json | bytes, headers: Mapping[str, str] | None = None) -> Answer:
        with self.call("POST", path, body, headers) as call:
            return call.read()

    def ping(self, timeout: float = DEFAULT_TIMEOUT) -> int:
        """The status of `/ping`; 0 when nobody answers in time."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/ping", timeout).status
        return 0

    def wait_not_ready(self) -> None:
        """Wait until `/ping` is no longer 200."""
        wait_until(lambda: self.ping() != 200)

    def scrape(self) -> Metrics:
        """One scrape, whether or not the engine answered it in time."""
        return parse_metrics(self.get("/metrics").body)

    def metrics(self) -> Metrics:
        """A scrape that the engine answered."""
        seen = wait_metrics(self, lambda _: True, 200.0)
        assert seen.answered, "the engine answers no scrape"
        return seen

    def generate(self, inputs: str, **parameters: Json) -> Outcome:
        """A whole answer with its tokens; never raises for what the server does."""
        return self.outcome(Ask(inputs, parameters))

    def stream(self, inputs: str, **parameters: Json) -> Outcome:
        """A streamed answer, read to its end; never raises for what the server does."""
        return self.outcome(Ask(inputs, parameters, stream=True))

    def outcome(self, ask: Ask) -> Outcome:
        """Ask `/invocations`, perhaps leave early, and say how it ended."""
        outcome = Outcome()
        try:
            with self.call("POST", "/invocations", ask.body()) as call:
                if ask.leave_after is not None:
                    call.set_timeout(ask.leave_after)
                outcome.status = call.response().status
                if ask.stream and outcome.status == 200:
                    self._follow_until_leaving(call, outcome, ask.leave_at_record)
                else:
                    read_whole(call.read(), outcome)
        except TimeoutError:
            outcome.ending = Ending.HUNG if ask.leave_after is None else Ending.LEFT
        except (OSError, http.client.HTTPException) as error:
            outcome.ending = Ending.CUT
            outcome.error = f" {type(error).__name__}: {error}"
        return outcome

    def _follow_until_leaving(self, call: Call, outcome: Outcome, leave_at_record: int | None) -> None:
        for number, _ in enumerate(self.follow(call, outcome), start=1):
            if number == leave_at_record and outcome.ending is Ending.CUT:
                outcome.ending = Ending.LEFT
                return

    def follow(self, call: Call, outcome: Outcome) -> Iterator[Json]:
        """Read a jsonlines stream record by record into `outcome`, and pass each record on."""
        outcome.ending = Ending.CUT
        outcome.status = call.response().status
        for line in call.lines():
            record = json.loads(line)
            read_record(record, outcome)
            yield record


def read_record(record: Json, outcome: Outcome) -> None:
    """One jsonlines record: a token, a token with the end of the answer, or an error."""
    if "error" in record:
        outcome.ending = Ending.TOLD
        outcome.error = f" {record['error']}"
        return
    if "token" in record and record["token"]["id"] >= 0:  # -1: the end came without a token
        outcome.token_ids.append(record["token"]["id"])
    if record.get("generated_text") is not None:
        outcome.ending = Ending.COMPLETE
        outcome.text = record["generated_text"]
        outcome.finish_reason = (record.get("details") or {}).get("finish_reason", "")


def read_whole(answer: Answer, outcome: Outcome) -> None:
    """A whole answer of `/invocations` with details, or an error status."""
    if answer.status != 200:
        outcome.ending = Ending.TOLD if answer.body.strip() else Ending.CUT
        outcome.error = f" {answer.body[:300]}"
        return
    reply = answer.json()
    if isinstance(reply, list):  # engine=Python: an array with one element for each prompt
        (reply,) = reply
    outcome.ending = Ending.COMPLETE
    outcome.text = reply["generated_text"]
    outcome.finish_reason = reply["details"]["finish_reason"]
    outcome.token_ids = [token["id"] for token in reply["details"]["tokens"]]
