"""A plain HTTP client that can disconnect at any moment and reports how a response ended."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.metrics import Metrics, parse_metrics, wait_metrics
from tests.support.waiting import wait_until

DEFAULT_TIMEOUT = 120.0
Json = Any


class Ending(StrEnum):
    """How a request ended, as seen by its client."""

    COMPLETE = "complete"
    ERROR = "error"
    """The client got an error status, or an error record at the end of the stream."""
    CLOSED = "closed"
    """The connection closed without an error message."""
    HUNG = "hung"
    """The client timed out."""
    DISCONNECTED = "disconnected"
    """The client disconnected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
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
        """From now on, raise `TimeoutError` after waiting longer than this for bytes."""
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
        """Yield the lines of the body as they arrive, without line ends."""
        response = self.response()
        while line := response.readline():
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True)
class Outcome:
    """The response of `/invocations`, complete or streamed. Filled while it arrives."""

    ending: Ending = Ending.HUNG
    status: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    error: str = ""

    def describe(self) -> str:
        reason = f"{self.finish_reason}{self.error}"
        return f"{self.ending} status={self.status} tokens={len(self.token_ids)} {reason}"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request to `/invocations`, and when its client disconnects."""

    inputs: str
    parameters: Mapping[str, Json] = field(default_factory=dict)
    stream: bool = False
    disconnect_after: float | None = None
    """Disconnect after waiting this many seconds for bytes."""
    disconnect_at_record: int | None = None
    """Disconnect from a stream at this record, counted from 1, unless it is the last."""

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
        """Send a request with a body of bytes or JSON. The caller reads the response."""
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
        """The status of `/ping`; 0 without a response in time."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/ping", timeout).status
        return 0

    def wait_not_ready(self) -> None:
        """Wait until `/ping` is no longer 200."""
        wait_until(lambda: self.ping() != 200)

    def scrape(self) -> Metrics:
        """Scrape once, whether or not the engine answers in time."""
        return parse_metrics(self.get("/metrics").body)

    def metrics(self) -> Metrics:
        """Scrape until the engine answers."""
        metrics = wait_metrics(self, lambda _: True, 200.0)
        assert metrics.answered, "the engine does not answer scrapes"
        return metrics

    def generate(self, inputs: str, **parameters: Json) -> Outcome:
        """Get a complete response. Failures of the server do not raise."""
        return self.outcome(ClientRequest(inputs, parameters))

    def stream(self, inputs: str, **parameters: Json) -> Outcome:
        """Read a streamed response to its end. Failures of the server do not raise."""
        return self.outcome(ClientRequest(inputs, parameters, stream=True))

    def outcome(self, ask: ClientRequest) -> Outcome:
        """Send a request to `/invocations`, disconnect early if requested, and return the outcome."""
        outcome = Outcome()
        try:
            with self.call("POST", "/invocations", ask.body()) as call:
                if ask.disconnect_after is not None:
                    call.set_timeout(ask.disconnect_after)
                outcome.status = call.response().status
                if ask.stream and outcome.status == 200:
                    self._follow_until_leaving(call, outcome, ask.disconnect_at_record)
                else:
                    read_whole(call.read(), outcome)
        except TimeoutError:
            outcome.ending = Ending.HUNG if ask.disconnect_after is None else Ending.DISCONNECTED
        except (OSError, http.client.HTTPException) as error:
            outcome.ending = Ending.CLOSED
            outcome.error = f" {type(error).__name__}: {error}"
        return outcome

    def _follow_until_leaving(self, call: Call, outcome: Outcome, disconnect_at_record: int | None) -> None:
        for number, _ in enumerate(self.follow(call, outcome), start=1):
            if number == disconnect_at_record and outcome.ending is Ending.CLOSED:
                outcome.ending = Ending.DISCONNECTED
                return

    def follow(self, call: Call, outcome: Outcome) -> Iterator[Json]:
        """Read a jsonlines stream into `outcome`, and yield each record."""
        outcome.ending = Ending.CLOSED
        outcome.status = call.response().status
        for line in call.lines():
            record = json.loads(line)
            read_record(record, outcome)
            yield record


def read_record(record: Json, outcome: Outcome) -> None:
    """Read a jsonlines record: a token, a token with the end of the response, or an error."""
    if "error" in record:
        outcome.ending = Ending.ERROR
        outcome.error = f" {record['error']}"
        return
    if "token" in record and record["token"]["id"] >= 0:  # -1: the response ended without a token
        outcome.token_ids.append(record["token"]["id"])
    if record.get("generated_text") is not None:
        outcome.ending = Ending.COMPLETE
        outcome.text = record["generated_text"]
        outcome.finish_reason = (record.get("details") or {}).get("finish_reason", "")


def read_whole(answer: Answer, outcome: Outcome) -> None:
    """Read a complete response of `/invocations` with details, or an error status."""
    if answer.status != 200:
        outcome.ending = Ending.ERROR if answer.body.strip() else Ending.CLOSED
        outcome.error = f" {answer.body[:300]}"
        return
    reply = answer.json()
    if isinstance(reply, list):  # engine=Python: an array with one element for each prompt
        (reply,) = reply
    outcome.ending = Ending.COMPLETE
    outcome.text = reply["generated_text"]
    outcome.finish_reason = reply["details"]["finish_reason"]
    outcome.token_ids = [token["id"] for token in reply["details"]["tokens"]]
