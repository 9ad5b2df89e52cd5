"""One prompt's output as text: tokens in, readable text out, until it ends.

Here text meets tokens: the engine knows no stop strings, so they are looked for here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.core import FinishReason, RequestOutput, SamplingParams
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.stop_strings import StopMatcher
from lmi_server.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated prompt with its parameters: past this point nothing is optional or unchecked."""

    prompt: str
    """The prompt as the client wrote it; for `return_full_text`, `echo` and `details.inputs`."""
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    continues_prompt: bool
    """True: the output goes on where the prompt ends. False: it is a text of its own, as in a chat."""
    field: str
    """Where the body has the prompt: `inputs`, `prompt[3]`."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token."""

    id: int
    text: str
    """The text that this token completes; all of it, stop strings included."""
    shown: str
    """The text that can be shown from this token on: never part of a stop string, perhaps an earlier token's."""
    logprob: float | None
    special: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished output."""

    text: str
    tokens: tuple[TokenText, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Step:
    """What one output of the engine comes to."""

    index: int
    """Which prompt of the call."""
    tokens: tuple[TokenText, ...]
    rest: str
    """Text held back so far that comes out at the end."""
    completion: Completion | None
    """Set on the prompt's last step."""

    @property
    def shown(self) -> str:
        """All text that can be shown from this step on."""
        return "".join(token.shown for token in self.tokens) + self.rest


class Continuation:
    """What follows one prompt. Mutable; belongs to the `Generation` that feeds it."""

    def __init__(self, index: int, request: GenerationRequest, text: TextModel) -> None:
        self.request = request
        self.num_generated = 0
        self._index = index
        self._text = text
        self._detokenizer = IncrementalDetokenizer(
            text, request.prompt_token_ids if request.continues_prompt else ()
        )
        self._stops = StopMatcher(request.stop_strings)
        # A stop string may be the name of a special token, which no decoded text contains.
        self._stop_ids = {text.special_tokens[s] for s in request.stop_strings if s in text.special_tokens}
        self._tokens: list[TokenText] = []
        self._shown: list[str] = []

    def take(self, output: RequestOutput) -> Step:
        """Turn an output without an error into text; at a stop string the rest of it is dropped."""
        first = len(self._tokens)
        stopped = False
        for index, token_id in enumerate(output.token_ids):
            logprob = output.logprobs[index] if index < len(output.logprobs) else None
            self._take_token(token_id, logprob)
            stopped = self._stops.matched is not None or token_id in self._stop_ids
            if stopped:
                break
        self.num_generated = len(self._tokens)
        finish_reason = FinishReason.STOP_SEQUENCE if stopped else output.finish_reason
        rest = self._end() if finish_reason is not None else ""
        if self._stops.matched is not None:
            finish_reason = FinishReason.STOP_SEQUENCE
        completion = None
        if finish_reason is not None:
            completion = Completion("".join(self._shown), tuple(self._tokens), finish_reason)
        return Step(self._index, tuple(self._tokens[first:]), rest, completion)

    def _take_token(self, token_id: int, logprob: float | None) -> None:
        piece = self._detokenizer.push(token_id)
        shown = self._stops.push(piece)
        self._shown.append(shown)
        special = token_id in self._text.special_ids
        self._tokens.append(TokenText(token_id, piece, shown, logprob, special))

    def _end(self) -> str:
        """The text held back by the detokenizer, then by the stop strings."""
        rest = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        self._shown.append(rest)
        return rest
