"""Checks of new requests: whether they can ever run, and whether the queue has room for them."""

from __future__ import annotations

from itertools import accumulate

from engines.core import Request, SchedulerSettings
from engines.errors import InvalidRequest, Overloaded, TooManyOutputs
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.waiting_queue import WaitingQueue
from engines.vocabulary import check_token_ids


def check_request(
    sequence: Sequence, settings: SchedulerSettings, blocks: BlockManager, max_model_len: int, vocab_size: int
) -> None:
    """Check that a request can run, at least alone.

    Biases, bad words and stop tokens are not checked: sampling ignores ids that have no logit.

    Raises:
        InvalidRequest: the request does not fit, or a prompt token is not in the model's vocabulary.
    """
    sampling = sequence.request.sampling
    if not sequence.token_ids or sampling.max_new_tokens < 1:
        raise InvalidRequest("a request needs at least one prompt token and max_new_tokens of at least 1")
    beams = sampling.num_beams
    if beams > settings.max_num_seqs:
        raise InvalidRequest(
            f"num_beams={beams} needs as many sequences; allowed: at most {settings.max_num_seqs}"
            " (option.max_rolling_batch_size)"
        )
    worst = sequence.max_num_tokens
    limit = max_model_len
    if beams * blocks.blocks_needed(worst, whole=beams > 1) > blocks.num_blocks:
        limit = min(limit, blocks.num_blocks // beams * blocks.block_size + 1)
    if worst > limit:
        each = f" for each of {beams} beams" if beams > 1 else ""
        reason = ""
        if beams > 1 and limit < max_model_len:
            reason = " (the KV cache holds no more; use fewer beams, or raise option.kv_cache_gb)"
        raise InvalidRequest(
            f"the prompt's {sequence.num_prompt_tokens} tokens and max_new_tokens={sampling.max_new_tokens}"
            f" are {worst} in total{each}, more than the limit of {limit} tokens{reason}"
        )
    check_token_ids(sequence.request.prompt_token_ids, vocab_size)


def check_together(requests: tuple[Request, ...], settings: SchedulerSettings) -> None:
    """Check that an idle server has room for all requests of one HTTP request. Otherwise it could never be accepted.

    Raises:
        TooManyOutputs: they exceed a limit.
    """
    used_places = accumulate(request.sampling.num_beams for request in requests)
    placed = sum(used <= settings.max_running for used in used_places)
    limit, max_waiting, waiting = settings.max_queued_tokens, settings.max_waiting, requests[placed:]
    if len(waiting) > max_waiting:
        raise TooManyOutputs(
            f"given {len(requests)} outputs in one request; accepted: at most {placed + max_waiting}, of which"
            f" {placed} run at once and {max_waiting} wait (job_queue_size)"
        )
    num_tokens = sum(len(request.prompt_token_ids) for request in waiting)
    if limit is not None and len(waiting) > 1 and num_tokens > limit:  # a single one may always wait
        raise TooManyOutputs(
            f"given {len(requests)} outputs in one request, of which {len(waiting)} have to wait, with prompts of"
            f" {num_tokens} tokens; accepted: at most {limit} tokens (option.max_queued_tokens)"
        )


def check_queue(sequence: Sequence, settings: SchedulerSettings, waiting: WaitingQueue, places: int) -> None:
    """Check that the queue has room for a request. places: number of sequences that can start at once.

    Requests that have a free place do not count, so that a burst on an idle server does not fill the queue. Preempted
    sequences do not count either: they were accepted before and get their places back. Here places are assigned by
    arrival, regardless of the policy.

    Raises:
        Overloaded: a limit is reached.
    """
    limit, max_waiting = settings.max_queued_tokens, settings.max_waiting
    if limit is None and waiting.num_newcomers < max_waiting:
        return
    num_requests, num_tokens = waiting.queued(places)
    if num_requests >= max_waiting:
        raise Overloaded(f"the queue is full: {max_waiting} requests are already waiting (job_queue_size)")
    if limit is not None and num_tokens and num_tokens + sequence.num_tokens > limit:
        raise Overloaded(
            f"the queue is full: prompts of {num_tokens} tokens are already waiting, and this one's"
            f" {sequence.num_tokens} would exceed the limit of {limit} (option.max_queued_tokens)"
        )
