"""One request from its body to its last byte, the same for every dialect."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

from flask import Response, request

from engines.errors import EngineError, Unavailable
from engines.health import EngineState
from lmi_server.apis.base import ApiContext, Call, Parse
from lmi_server.apis.body import read_object
from lmi_server.client_gone import ClientWatch
from lmi_server.errors import Problem, dump
from lmi_server.generation import ClientGone, Generation, Step
from lmi_server.request_log import RequestRecord, current_record

_logger = logging.getLogger(__name__)

CLIENT_GONE_STATUS = 499
"""Never seen by a client; what the log and the counters say of one that left."""


def answer(context: ApiContext, parse: Parse) -> Response:
    """Answer the current request in the dialect of `parse`.

    Raises `EngineError` for all that goes wrong before the first byte is sent.
    """
    record = current_record()
    health = context.engine.health()
    if health.state is not EngineState.READY:
        raise Unavailable(health.summary())
    call = parse(context, read_object(request))
    generation = Generation(
        record.id,
        call.request,
        engine=context.engine,
        text=context.text,
        client=ClientWatch.of(request.environ),
        arrival_time=record.arrival_time,
        timeout=context.config.server.predict_timeout,
    )
    record.generation = generation
    record.num_prompt_tokens = len(call.request.prompt_token_ids)
    try:
        return _respond(call, generation, record)
    except ClientGone:
        generation.close()
        record.finish = "client_gone"
        return Response(status=CLIENT_GONE_STATUS)
    except BaseException:
        # Also when a worker is stopped: nothing may go on computing for a request that gets no answer.
        generation.close()
        raise


def _respond(call: Call, generation: Generation, record: RequestRecord) -> Response:
    steps = iter(generation)
    # The first step before the first byte: a request that is refused still gets its own status.
    first = next(steps)
    if call.reply.streamed:
        response = Response(
            _stream(call, generation, first, steps, record), content_type=call.reply.content_type
        )
        # A generator that was never started runs no 'finally'.
        response.call_on_close(generation.close)
        return response
    completion = next(
        step.completion for step in itertools.chain([first], steps) if step.completion is not None
    )
    record.finish = completion.finish_reason
    return Response(dump(call.reply.whole(completion)) + "\n", content_type="application/json")


def _stream(
    call: Call, generation: Generation, first: Step, steps: Iterator[Step], record: RequestRecord
) -> Iterator[bytes]:
    """One chunk for each step. A failure becomes the last record; nothing is raised out of here."""
    record.finish = "client_gone"  # unless an end is reached
    try:
        start = call.reply.start()
        for step in itertools.chain([first], steps):
            if step.completion is not None:
                record.finish = step.completion.finish_reason
            if frames := start + call.reply.step(step):
                yield frames.encode()
            start = ""
    except ClientGone:
        return
    except EngineError as error:
        record.finish = error.kind
        yield call.reply.failure(Problem.of(error)).encode()
    except Exception as error:
        _logger.exception("%s stream failed", record.id)
        record.finish = "internal"
        yield call.reply.failure(Problem.of(error)).encode()
    finally:
        generation.close()
