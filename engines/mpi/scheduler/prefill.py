"""How prompts share steps with running sequences, selected by `option.enable_chunked_prefill`.

Chunks of prompts share steps with decodes (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310). Without chunks,
decodes pause while whole prompts run, as in Hugging Face's TGI and as the AWS post on LMI describes.
"""

from __future__ import annotations

from engines.core import SchedulerSettings


def decodes_pause(
    num_prefilling: int,
    num_running: int,
    num_waiting: int,
    num_decode_steps: int,
    settings: SchedulerSettings,
) -> bool:
    """Return whether decodes pause now for the prompts of running sequences, `num_prefilling`, and of waiting ones.

    num_decode_steps: steps since the last one with prefills.
    """
    if settings.chunked_prefill:
        return False
    if num_prefilling or num_running == 0:
        return True
    if num_waiting == 0 or num_decode_steps < settings.waiting_steps:
        return False
    return num_decode_steps >= settings.max_waiting_tokens or num_waiting >= int(
        settings.waiting_served_ratio * num_running
    )


def chunk_size(
    num_missing: int, num_prefill_tokens: int, num_tokens: int, settings: SchedulerSettings
) -> int:
    """Return how many of a sequence's missing tokens fit into the step; 0 if none.

    Without chunks these are all or none; a prompt longer than the limit runs in a step of its own.
    num_prefill_tokens: prefill tokens in the step so far; num_tokens: all tokens in the step so far.
    """
    if not settings.chunked_prefill:
        limit = min(settings.max_prefill_tokens, settings.max_num_batched_tokens)
        return num_missing if not num_tokens or num_tokens + num_missing <= limit else 0
    room = min(settings.max_prefill_tokens - num_prefill_tokens, settings.max_num_batched_tokens - num_tokens)
    return max(0, min(num_missing, room))
