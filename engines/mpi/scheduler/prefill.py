"""Prefill modes, selected by `option.enable_chunked_prefill`: how prompts share steps with running sequences."""

from __future__ import annotations

from engines.core import SchedulerSettings


class ChunkedPrefill:
    """Chunked prefill: prompt chunks share steps with decodes (Sarathi-Serve, Agrawal et al. 2024,
    arXiv:2403.02310)."""

    pauses_decodes = False
    """Whether a step has either prefills or decodes, never both."""

    def is_due(
        self, num_running: int, num_waiting: int, num_decode_steps: int, settings: SchedulerSettings
    ) -> bool:
        """Return whether decodes pause now for the prompts of newcomers.

        num_decode_steps: steps since the last one with prefills.
        """
        return False

    def chunk_size(
        self, num_missing: int, num_prefill_tokens: int, num_tokens: int, settings: SchedulerSettings
    ) -> int:
        """Return how many of a sequence's missing tokens fit into the step; 0 if none.

        num_prefill_tokens: prefill tokens in the step so far; num_tokens: all tokens in the step so far.
        """
        room = min(
            settings.max_prefill_tokens - num_prefill_tokens, settings.max_num_batched_tokens - num_tokens
        )
        return max(0, min(num_missing, room))


class ExclusivePrefill(ChunkedPrefill):
    """Decodes pause while whole prompts run, as in Hugging Face's TGI and as the AWS post on LMI describes."""

    pauses_decodes = True

    def is_due(
        self, num_running: int, num_waiting: int, num_decode_steps: int, settings: SchedulerSettings
    ) -> bool:
        if num_running == 0:
            return True
        if num_waiting == 0 or num_decode_steps < settings.waiting_steps:
            return False
        return num_decode_steps >= settings.max_waiting_tokens or num_waiting >= int(
            settings.waiting_served_ratio * num_running
        )

    def chunk_size(
        self, num_missing: int, num_prefill_tokens: int, num_tokens: int, settings: SchedulerSettings
    ) -> int:
        """Return all missing tokens or 0. A prompt longer than the limit runs in a step of its own."""
        limit = min(settings.max_prefill_tokens, settings.max_num_batched_tokens)
        return num_missing if not num_tokens or num_tokens + num_missing <= limit else 0


def make_prefill_mode(chunked: bool) -> ChunkedPrefill:
    return ChunkedPrefill() if chunked else ExclusivePrefill()
