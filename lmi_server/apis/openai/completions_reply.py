"""OpenAI's format of completions: `text_completion` objects with `n` choices for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmi_server.apis.openai.reply import FINISH_REASONS, OpenAiReply, prompt_logprobs
from lmi_server.apis.pipeline import BodyFields, Conventions
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextOutput, TokenText
from lmi_server.generation.generation import GenerationResult
from lmi_server.generation.turns import in_turns


class CompletionsReply(OpenAiReply):
    """Writes completions. Stateful: it counts the characters of each choice."""

    id_prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        fields: BodyFields,
        requests: Sequence[GenerationRequest],
        conventions: Conventions,
        echoed: Sequence[str],
    ) -> None:
        """`echoed`: text at the start of each choice, the prompt or nothing."""
        super().__init__(fields, requests, conventions)
        self._echo: bool = fields.parameters["echo"]
        self._echoed = echoed
        self._num_top: int | None = fields.parameters["logprobs"]
        """Number of most likely tokens listed beside each token; None without log-probabilities."""
        self._shows_prompt_logprobs = fields.parameters["prompt_logprobs"] is not None
        self._offsets = [0] * len(echoed)
        self._num_choices = len(echoed) // len(requests)
        """Number of choices for each prompt."""
        self._without_prompt = set(range(len(echoed)))
        """Choices whose prompt's token ids were not sent yet."""

    def body(self, result: GenerationResult) -> Any:
        choices = [self._full_choice(index, done) for index, done in enumerate(result.completions)]
        return self._body(choices, result)

    def start(self) -> list[str]:
        if self._num_top is not None:
            return []  # the prompt follows with its log-probabilities
        choices = (self._choice(index, text, (), None) for index, text in enumerate(self._echoed) if text)
        return list(map(self._chunk, choices))

    def _records(self, output: TextOutput) -> list[str]:
        text = output.shown
        tokens = self._listed(output.released, output.completion)
        prompt_tokens: tuple[TokenText, ...] = ()
        if self._num_top is not None and output.prompt_tokens and self._echo:
            text = self._echoed[output.index] + text
            prompt_tokens = output.prompt_tokens
        if not prompt_tokens and not output.tokens and output.completion is None:
            return []
        choice = self._choice(output.index, text, tokens, output.completion, prompt_tokens)
        return [self._chunk(choice | self._ids(output.index, tokens))]

    def _ids(self, index: int, tokens: Sequence[TokenText]) -> dict[str, Any]:
        """Return the token ids if requested, and in the first chunk with tokens of a choice those of its prompt."""
        ids = self._token_ids(tokens)
        if ids and index in self._without_prompt:
            self._without_prompt.discard(index)
            ids |= self._prompt_ids(index // self._num_choices)
        return ids

    def _full_choice(self, index: int, done: Completion) -> dict[str, Any]:
        prompt_tokens = done.prompt_tokens if self._echo else ()
        tokens = self._listed(done.released, done)
        choice = self._choice(index, self._echoed[index] + done.text, tokens, done, prompt_tokens)
        choice |= self._ids(index, tokens)
        if self._shows_prompt_logprobs:
            choice |= prompt_logprobs(done.prompt_tokens)
        return choice

    def _choice(
        self,
        index: int,
        text: str,
        tokens: tuple[TokenText, ...],
        completion: Completion | None,
        prompt_tokens: tuple[TokenText, ...] = (),
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, prompt_tokens, tokens, completion),
            "finish_reason": None if completion is None else FINISH_REASONS[completion.finish_reason],
        }

    def _logprobs(
        self,
        index: int,
        prompt_tokens: tuple[TokenText, ...],
        tokens: tuple[TokenText, ...],
        completion: Completion | None,
    ) -> dict[str, Any] | None:
        """Return the tokens, their log-probabilities and their offsets in the choice's text; None if not requested."""
        if self._num_top is None:
            return None
        offsets = []
        if prompt_tokens:
            offsets = _prompt_offsets(prompt_tokens, self._echoed[index])
            self._offsets[index] = len(self._echoed[index])
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.text)
        if completion is not None:  # tokens that a stop cut off are listed at the end of the text
            length = len(self._echoed[index]) + len(completion.text)
            offsets = [min(offset, length) for offset in offsets]
        tokens = prompt_tokens + tokens
        return {
            "text_offset": offsets,
            "tokens": [token.name for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token) for token in in_turns(tokens)],
        }

    def _top(self, token: TokenText) -> dict[str, float] | None:
        """Return the most likely tokens and the token itself; None for a prompt's first token."""
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        # Several tokens may have the same text, such as parts of a character. The most likely one is reported.
        for one in token.top_as(token.name)[: self._num_top]:
            found.setdefault(one.text, one.logprob)
        found.setdefault(token.name, token.logprob)
        return found


def _prompt_offsets(tokens: Sequence[TokenText], echoed: str) -> list[int]:
    """Return the offset of each prompt token in the echoed text, which may omit special tokens."""
    offsets = []
    offset = 0
    for token in tokens:
        offsets.append(offset)
        if not token.special or echoed.startswith(token.name, offset):
            offset += len(token.name)
    return offsets
