"""Serve one HTTP request, from its body to the last byte of the response. All APIs share this code."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask import Response, request

from engines.errors import EngineError
from lmi_server.apis.adapters import refuse_adapters
from lmi_server.apis.base import ApiContext, Call, Parse
from lmi_server.apis.formatted_reply import FormattedReply
from lmi_server.apis.tenant import tenant_of
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import TextOutput
from lmi_server.generation.candidates import HttpRequest
from lmi_server.generation.formatter import errors_of_returned_body
from lmi_server.generation.generation import TextGeneration
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.generation.turns import in_turns
from lmi_server.http.client_gone import ClientDisconnected, ClientWatch
from lmi_server.http.framing import UNBUFFERED
from lmi_server.http.json_reply import json_response
from lmi_server.request_log import RequestRecord, current_record

MAX_TOP_TOKENS = 1_000_000
"""Maximum number of most likely tokens of a whole answer. Those of candidates that `best_of` drops count too.

All are kept in memory until the answer ends, and while it is written, other requests wait.
"""
_logger = logging.getLogger(__name__)


def answer(context: ApiContext, parse: Parse) -> Response:
    """Answer the current request. `parse` parses its body.

    Raises `EngineError` for every failure before the first byte is sent, and `ClientDisconnected`.
    """
    record = current_record()
    context.require_ready()
    refuse_adapters(request)
    tenant = tenant_of(request.headers)
    with _read_body(context, record) as body:
        call = parse(context, body)
    del body  # it may be large
    http = _http_request(context, call, record, tenant)
    generation = TextGeneration(
        http,
        call.requests,
        engine=context.engine,
        text=context.text,
        client=ClientWatch.from_environ(request.environ),
        max_top_tokens=math.inf if call.reply.streamed else MAX_TOP_TOKENS,
    )
    record.generation = generation
    try:
        return _respond(context, call, generation, record, http.limit)
    except BaseException:
        # This includes the shutdown of a worker: the engine must stop computing an answer that nobody receives.
        generation.close()
        raise


@contextmanager
def _read_body(context: ApiContext, record: RequestRecord) -> Iterator[dict[str, Any]]:
    """Read the body of the current request. A user's formatter may rewrite it.

    Raises `EngineError`, and `ClientDisconnected` if the client disconnects while the formatter runs.
    """
    formatter = context.formatter
    if formatter is not None and formatter.reads_bodies:
        limit = TimeLimit(record.arrival_time, context.config.server.predict_timeout)
        client = ClientWatch.from_environ(request.environ)
        with context.bodies.raw(request) as data:
            body = formatter.rewrite_request(data, dict(request.headers.items()), client, limit)
            with errors_of_returned_body():
                yield body
    else:
        with context.bodies.json_object(request) as body:
            yield body


def _http_request(context: ApiContext, call: Call, record: RequestRecord, tenant: str) -> HttpRequest:
    """Create the request. If the engine has its own timeout, the web process enforces only a timeout from the body."""
    by_engine = context.capabilities.enforces_timeout
    limit = None
    if call.timeout is not None:
        limit = TimeLimit(record.arrival_time, call.timeout, "timeout")
    elif not by_engine:
        limit = TimeLimit(record.arrival_time, context.config.server.predict_timeout)
    return HttpRequest(
        id=record.id,
        arrival_time=record.arrival_time,
        limit=limit,
        engine_enforces_deadline=not by_engine,
        tenant=tenant,
        priority=call.priority,
    )


def _respond(
    context: ApiContext,
    call: Call,
    generation: TextGeneration,
    record: RequestRecord,
    limit: TimeLimit | None,
) -> Response:
    outputs = iter(generation)
    # Wait for the first output before sending a byte, so that a rejected request still gets its own status.
    first = next(outputs)
    if context.output_formatter is not None:
        client = ClientWatch.from_environ(request.environ)
        # engine=Python counts the time from the start of the batch, which is not known here.
        limit = limit or TimeLimit(time.monotonic(), context.config.server.predict_timeout)
        call = replace(call, reply=FormattedReply(call, context.output_formatter, client, limit))
    if call.reply.streamed:
        response = Response(
            _stream(call, generation, first, outputs, record), content_type=call.reply.content_type
        )
        response.headers[UNBUFFERED] = "no"
        # A generator that was never started does not run its `finally` block.
        response.call_on_close(generation.close)
        return response
    for _ in outputs:
        pass
    record.finish = _finish_reasons(generation)
    return json_response(call.reply.body(generation.result))


def _finish_reasons(generation: TextGeneration) -> str:
    """Return the finish reasons for the log, without duplicates."""
    return ",".join(dict.fromkeys(completion.finish_reason for completion in generation.result.completions))


def _stream(
    call: Call,
    generation: TextGeneration,
    first: TextOutput,
    outputs: Iterator[TextOutput],
    record: RequestRecord,
) -> Iterator[bytes]:
    """Yield one chunk for each record, because some clients parse each chunk by itself.

    A failure becomes the last record; nothing is raised.
    """
    record.finish = "client_gone"  # unless the stream reaches its end
    try:
        yield from map(str.encode, call.reply.start())
        # After a slow write, many outputs are available. Reading them does not switch greenlets.
        for output in in_turns(itertools.chain([first], outputs)):
            records = call.reply.records(output)
            if generation.finished:
                records += call.reply.end(generation.result)
                record.finish = _finish_reasons(generation)
            yield from map(str.encode, records)
    except ClientDisconnected:
        return
    except Exception as error:
        if not isinstance(error, EngineError):
            _logger.exception("%s stream failed", record.id)
        problem = ErrorReply.from_exception(error)
        record.finish = problem.kind
        yield call.reply.failure(problem).encode()
    finally:
        generation.close()
