"""Convert the output tokens of one prompt to text.

The engine handles only tokens, so stop strings are found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from engines.core import FinishReason, PromptLogprob, RequestOutput, SamplingParams, TokenLogprobs
from lmi_server.generation.turns import in_turns
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.stop_strings import StopMatcher
from lmi_server.text.tokenizer import TextModel

_LOWEST_LOGPROB = -9999.0
"""OpenAI's value for an impossible token; JSON has no minus infinity."""


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules by which tokens are converted to the text of a completion."""

    continues_prompt: bool
    """Whether the output continues the prompt's text, rather than being a separate text as in a chat."""
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    """Token ids from the client that end the text like a stop string. The model's EOS ids are not included."""
    include_stop: bool = False
    """Whether to keep the stop string or token that ends the text."""
    skip_special_tokens: bool = True
    drops_output: bool = False
    """Whether to drop the output, because only the prompt was requested. The engine always generates a token."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated prompt with its parameters. All values are checked, and all defaults are set."""

    prompt: str
    """The prompt as the client wrote it. Used for `return_full_text`, `echo`, `details.inputs` and output formatters;
    empty if none of them needs it."""
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    rules: TextRules
    field: str
    """The body's field that holds the prompt, such as `inputs` or `prompt[3]`."""
    n: int = 1
    """Number of completions to return."""
    best_of: int = 1
    """Number of completions to generate, at least `n`."""
    ranked: bool = False
    """Whether the `n` most likely completions are returned, the best one first. Otherwise, all are, in their order."""
    truncated: bool = False
    """Whether `prompt_token_ids` is only a part of `prompt`."""
    count_field: str = ""
    """The body's field that determines the number of outputs: the one that sets `best_of`, or that of all prompts."""


class TopToken(NamedTuple):
    """One of the most likely tokens at a position."""

    id: int
    text: str
    logprob: float


class TokenText(msgspec.Struct, frozen=True):
    """One token of the output or the prompt, as text."""

    id: int
    text: str
    """All text that this token completes, including stop strings."""
    name: str
    """The token in lists of log-probabilities: its own text if it is special, else `text`."""
    shown: str
    """Text that can be shown once this token has arrived. May include held-back text of earlier tokens."""
    logprob: float | None
    special: bool
    top: tuple[TopToken, ...] = ()
    """The most likely tokens at this position, as many as requested."""

    def top_as(self, text: str) -> tuple[TopToken, ...]:
        """Return `top`, with `text` as the text of this token if it is among them."""
        return tuple(TopToken(one.id, text, one.logprob) if one.id == self.id else one for one in self.top)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished output, as text."""

    text: str
    tokens: tuple[TokenText, ...]
    num_released: int
    """Number of leading tokens whose whole text is in `text`. A stop string may cut off the last tokens."""
    finish_reason: FinishReason
    prompt_tokens: tuple[TokenText, ...] = ()
    """The prompt's tokens with their log-probabilities, if requested. The first token has no log-probability."""

    @property
    def released(self) -> tuple[TokenText, ...]:
        return self.tokens[: self.num_released]

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token, by which the completions of `best_of` are ranked."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else _LOWEST_LOGPROB


class TextOutput(msgspec.Struct, frozen=True):
    """One output of the engine as text."""

    index: int
    """Index of the completion within the HTTP request."""
    tokens: tuple[TokenText, ...]
    released: tuple[TokenText, ...]
    """Tokens that are now known to be part of the text, because no stop string begins in them."""
    flushed_text: str
    """Text held back until the end."""
    completion: Completion | None
    """Set on the last output only."""
    prompt_tokens: tuple[TokenText, ...] = ()
    """Set on the first output, if the prompt's log-probabilities are requested."""

    @property
    def shown(self) -> str:
        """All text that can be shown now."""
        return "".join([token.shown for token in self.tokens]) + self.flushed_text


class PromptText:
    """A prompt. All its completions share its tokens, which need the log-probabilities that the first one reports."""

    def __init__(self, request: GenerationRequest, text: TextModel) -> None:
        self.request = request
        self.text = text
        self._tokens: tuple[TokenText, ...] = ()

    def lacks_logprobs(self, output: RequestOutput) -> bool:
        """Return whether log-probabilities are requested, but came neither with this output nor before. A prompt of one
        token has none."""
        missing = self.request.sampling.prompt_logprobs is not None and len(self.request.prompt_token_ids) > 1
        return missing and not self._tokens and not output.prompt_logprobs

    def tokens(self, logprobs: Sequence[PromptLogprob]) -> tuple[TokenText, ...]:
        """Return the prompt's tokens with the log-probabilities that the engine reports for all but the first.

        logprobs: used in the first call only.
        """
        if not self._tokens:
            self._tokens = tuple(self._join(logprobs))
        return self._tokens

    def _join(self, logprobs: Sequence[PromptLogprob]) -> Iterator[TokenText]:
        ids = self.request.prompt_token_ids
        detokenizer = IncrementalDetokenizer(self.text, (), self.request.rules.skip_special_tokens)
        for index, token_id in in_turns(enumerate(ids)):
            piece = detokenizer.push(token_id)
            if index == len(ids) - 1:
                piece += detokenizer.flush()
            known = logprobs[index - 1] if 0 < index <= len(logprobs) else None
            logprob = None if known is None else max(known.logprob, _LOWEST_LOGPROB)
            top = () if known is None else _top_tokens(known.top, self.text)
            special = token_id in self.text.special_ids
            name = self.text.token_text(token_id) if special else piece
            yield TokenText(token_id, piece, name, piece, logprob, special, top)


class CompletionText:
    """The text of one completion. Owned by the `TextGeneration` that adds the outputs."""

    def __init__(self, index: int, prompt: PromptText) -> None:
        """`index`: index of the completion in the HTTP request. `prompt`: shared by all completions of the prompt."""
        request, text = prompt.request, prompt.text
        self.prompt = prompt
        self.request = request
        self.num_generated = 0
        self.num_cached_tokens = 0
        """Number of cached prompt tokens, which the engine reports with the first token."""
        self._index = index
        self._text = text
        self._rules = request.rules
        self._detokenizer = IncrementalDetokenizer(
            text,
            request.prompt_token_ids if request.rules.continues_prompt else (),
            request.rules.skip_special_tokens,
        )
        self._stops = StopMatcher(request.rules.stop_strings, request.rules.include_stop)
        self._stop_names = _special_stops(request.rules, text)
        self._tokens: list[TokenText] = []
        self._last_decoded = 0
        """Index of the last token with text of its own, to which text that the detokenizer holds back belongs."""
        self._silent_end: TokenText | None = None
        """The special token that ended the output, if its text is not part of the completion."""
        self._prompt_tokens: tuple[TokenText, ...] = ()
        self._shown: list[str] = []
        self._num_shown_chars = 0
        self._num_released = 0
        self._num_released_chars = 0

    def add_output(self, output: RequestOutput) -> TextOutput:
        """Convert an output without an error to text. Tokens after a stop string are dropped."""
        first = len(self._tokens)
        prompt_tokens = self._record_prompt(output) if first == 0 else ()
        if self._rules.drops_output:
            end = None if output.finish_reason is None else FinishReason.LENGTH
            output = output._replace(token_ids=(), finish_reason=end)
        stop_name: str | None = None
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            ends = index == last and output.finish_reason is FinishReason.EOS_TOKEN
            logprob = output.logprobs[index] if index < len(output.logprobs) else None
            top = output.top_logprobs[index] if index < len(output.top_logprobs) else ()
            self._add_token(token_id, logprob, top, ends)
            if self._may_stop(len(self._tokens)):
                stop_name = self._stop_names.get(token_id)
            if stop_name is not None or self._stops.matched is not None:
                break
        self.num_generated = len(self._tokens)
        finish_reason = self._finish_reason(output, stop_name)
        flushed_text = self._flush(stop_name) if finish_reason is not None else ""
        if self._stops.matched is not None:  # possibly in text that was held back until now
            finish_reason = FinishReason.STOP_SEQUENCE
        released = self._release()
        completion = None
        if finish_reason is not None:
            completion = Completion(
                "".join(self._shown),
                tuple(self._tokens),
                self._num_released,
                finish_reason,
                self._prompt_tokens,
            )
        return TextOutput(
            self._index, tuple(self._tokens[first:]), released, flushed_text, completion, prompt_tokens
        )

    def _record_prompt(self, output: RequestOutput) -> tuple[TokenText, ...]:
        """Record what the engine reports about the prompt with the first token."""
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if not output.token_ids or self.request.sampling.prompt_logprobs is None:
            return ()
        self._prompt_tokens = self.prompt.tokens(output.prompt_logprobs)
        return self._prompt_tokens

    def _add_token(self, token_id: int, logprob: float | None, top: TokenLogprobs, ends: bool) -> None:
        """Add a token. `ends`: the engine stopped at this token, which is in the text only with `include_stop`."""
        special = token_id in self._text.special_ids
        hidden = special and self._rules.skip_special_tokens
        silent = ends and not self._rules.include_stop
        if not (hidden or silent):
            self._last_decoded = len(self._tokens)
        if silent:
            shown = ""
            piece = "" if hidden else self._text.token_text(token_id)
        else:
            piece = self._detokenizer.push(token_id)
            shown = self._show(piece, len(self._tokens) + 1)
        lowest = None if logprob is None else max(logprob, _LOWEST_LOGPROB)
        likeliest = _top_tokens(top, self._text) if top else ()
        name = self._text.token_text(token_id) if special else piece
        token = TokenText(token_id, piece, name, shown, lowest, special, likeliest)
        self._tokens.append(token)
        if silent and special:
            self._silent_end = token

    def _may_stop(self, num_tokens: int) -> bool:
        """Return whether an output of so many tokens may end with a stop string."""
        return num_tokens > self.request.sampling.min_new_tokens

    def _show(self, piece: str, num_tokens: int) -> str:
        """Add the text that token number `num_tokens` completes. Return the text that can be shown."""
        shown = self._stops.push(piece, self._may_stop(num_tokens))
        self._shown.append(shown)
        self._num_shown_chars += len(shown)
        return shown

    def _finish_reason(self, output: RequestOutput, stop_name: str | None) -> FinishReason | None:
        if stop_name is not None or self._stops.matched is not None:
            return FinishReason.STOP_SEQUENCE
        ended_by_token = output.finish_reason is FinishReason.EOS_TOKEN and self._tokens
        if ended_by_token and self._tokens[-1].id in self._rules.stop_token_ids:
            return FinishReason.STOP_SEQUENCE
        return output.finish_reason

    def _flush(self, stop_name: str | None) -> str:
        """Return the text held back by the detokenizer, followed by the text held back by the stop matcher."""
        rest = self._detokenizer.flush()
        if rest:
            self._complete_last(rest)
        flushed_text = self._show(rest, len(self._tokens))
        held = self._stops.flush()
        if self._rules.include_stop and stop_name is not None and self._stops.matched is None:
            held += stop_name
        self._shown.append(held)
        self._num_shown_chars += len(held)
        return flushed_text + held

    def _complete_last(self, rest: str) -> None:
        """Add `rest`, such as the replacement of an incomplete character, to the text of the last decoded token."""
        token = self._tokens[self._last_decoded]
        name = token.name if token.special else token.name + rest
        self._tokens[self._last_decoded] = msgspec.structs.replace(token, text=token.text + rest, name=name)
        if self._last_decoded < self._num_released:
            self._num_released_chars += len(rest)

    def _release(self) -> tuple[TokenText, ...]:
        """Return the tokens whose whole text is now shown."""
        start = self._num_released
        while self._num_released < len(self._tokens):
            token = self._tokens[self._num_released]
            num_chars = self._num_released_chars + (0 if token is self._silent_end else len(token.text))
            if num_chars > self._num_shown_chars:
                break
            self._num_released_chars = num_chars
            self._num_released += 1
        return tuple(self._tokens[start : self._num_released])


def _special_stops(rules: TextRules, text: TextModel) -> dict[int, str]:
    """Return the stop strings that are special tokens, by id. Decoded text does not contain special tokens."""
    if not rules.skip_special_tokens:
        return {}
    return {text.special_tokens[stop]: stop for stop in rules.stop_strings if stop in text.special_tokens}


def _top_tokens(top: TokenLogprobs, text: TextModel) -> tuple[TopToken, ...]:
    return tuple(TopToken(number, text.token_text(number), max(one, _LOWEST_LOGPROB)) for number, one in top)
