"""How prompts share steps with running sequences, by `option.enable_chunked_prefill`."""

from __future__ import annotations

from engines.core import SchedulerSettings


class Overlay:
    """Chunks of prompts ride with others' single tokens (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310)."""

    pauses_decodes = False
    """A step has prompts or single tokens of generating sequences, never both."""

    def is_due(
        self, num_running: int, num_waiting: int, num_decode_steps: int, settings: SchedulerSettings
    ) -> bool:
        """Whether decodes wait now for prompts of newcomers.

        num_decode_steps: since the last step with prompts.
        """
        return False

    def chunk(
        self, num_missing: int, num_prefill_tokens: int, num_tokens: int, settings: SchedulerSettings
    ) -> int:
        """How many of a sequence's missing tokens fit into a step that has so many already; 0: none.

        num_prefill_tokens: of sequences that catch up; num_tokens: of all.
        """
        room = min(
            settings.max_prefill_tokens - num_prefill_tokens, settings.max_num_batched_tokens - num_tokens
        )
        return max(0, min(num_missing, room))


class Pause(Overlay):
    """Decodes wait while whole prompts run: what Hugging Face's TGI does, and the AWS post on LMI describes."""

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

    def chunk(
        self, num_missing: int, num_prefill_tokens: int, num_tokens: int, settings: SchedulerSettings
    ) -> int:
        """A prompt longer than the limit runs in a step of its own."""
        limit = min(settings.max_prefill_tokens, settings.max_num_batched_tokens)
        return num_missing if not num_tokens or num_tokens + num_missing <= limit else 0


def make_prefill_mode(chunked: bool) -> Overlay:
    return Overlay() if chunked else Pause()
