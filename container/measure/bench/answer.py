"""Parse the streamed response to one request."""

from __future__ import annotations

from container.measure.bench.dialects import Dialect

_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_SHOWN = 200


class BadAnswer(Exception):
    """The response is malformed or incomplete, or reports an error. The message says why."""


class TimedOut(BadAnswer):
    """The response was not complete within the time limit."""


class AnswerReader:
    """Incremental parser of one response stream. The caller supplies the times; no method blocks."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._rest = b""
        self._ended = False
        self._reported_output_tokens: int | None = None
        self.token_times: list[float] = []
        self.token_ids: list[int] = []
        self.prompt_tokens: int | None = None

    @property
    def output_tokens(self) -> int:
        """Number of output tokens: counted here if each record is a token, else the server's count; 0 if unknown."""
        if self._dialect.pieces_are_tokens:
            return len(self.token_times)
        return self._reported_output_tokens or 0

    def feed(self, data: bytes, now: float) -> None:
        """Parse bytes that were received at time `now`. Raises BadAnswer."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise BadAnswer(f"a line of the response is longer than {_MAX_LINE_BYTES} bytes")
        for line in lines:
            self._line(line, now)

    def finish(self, now: float) -> None:
        """Check at the end of the stream that the response is complete. Raises BadAnswer."""
        if self._rest:  # LMI ends a failed stream with a record without a line end
            self._line(self._rest, now)
        if not self._ended:
            raise BadAnswer("the stream ended before its final record")
        reported, counted = self._reported_output_tokens, len(self.token_times)
        if reported is None and not self._dialect.pieces_are_tokens:
            raise BadAnswer(
                "the server does not report how many tokens it generated (stream_options.include_usage)"
            )
        if reported is not None and self._dialect.pieces_are_tokens and reported != counted:
            raise BadAnswer(f"received {counted} tokens, but the server reports {reported}")

    def _line(self, line: bytes, now: float) -> None:
        try:
            record = self._dialect.read(line)
        except ValueError as error:
            shown = ascii(line[:_MAX_SHOWN].decode("utf-8", "replace"))
            raise BadAnswer(f"not a record of the {self._dialect.name} dialect: {shown} ({error})") from error
        if record is None:
            return
        if record.error:
            raise BadAnswer(record.error)
        if self._ended:
            raise BadAnswer("received a record after the final one")
        self._ended = record.ends
        self.token_times += [now] * record.num_pieces
        self.token_ids += record.token_ids
        if record.output_tokens is not None:
            self._reported_output_tokens = record.output_tokens
        if record.prompt_tokens is not None:
            self.prompt_tokens = record.prompt_tokens
