"""Benchmark requests: seeded prompts of words with exact token counts, with or without shared prefixes.

Tokens are counted as the server counts them: by the model's tokenizer, with the special tokens that it adds to plain
text. The same workload, seed and tokenizer always give the same prompts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from container.errors import UserError
from container.measure.bench.lengths import Fixed, Lengths, scale_count
from container.measure.bench.prefixes import Prefixes, block_ids, scale_prefixes
from lmi_server.text.tokenizer import read_tokenizer

_COMMON_WORDS = (
    "a I of to in is it on as at by we the and for are was one all can her has out our day get see new two way who "
    "boy did its let put say she too use water house world river stone paper green table music light small large "
    "about after again below could every first found great hand high home just know last left life little long made "
    "make many more most move much must name never night number often other over part people place point right same"
)
"""Words for tokenizers with hardly any single-token words; every language model's tokenizer can encode these."""
_WORD_LETTERS = range(4, 13)
_SPACES = ("\u0120", "\u2581")
_MAX_SHOWN = 100
_MAX_TRIES = 200
"""Maximum changes of a prompt until its token count fits. It fits at once if each word is one token."""


class BenchError(UserError):
    """A benchmark cannot be run."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Number and size of requests."""

    prompts: Lengths
    """Token counts of the prompts, special tokens included."""
    outputs: Lengths
    """Token counts of the answers."""
    num_requests: int
    prefixes: Prefixes | None = None
    """Shared prefixes of the prompts, if any."""

    @property
    def title(self) -> str:
        """Mean token counts in words."""
        exact = isinstance(self.prompts, Fixed) and isinstance(self.outputs, Fixed)
        average = "" if exact else " on average"
        return f"{self.prompts.mean:.0f} tokens in, {self.outputs.mean:.0f} out{average}"

    def scaled(self, factor: float) -> Workload:
        """Return the workload with token counts and number of requests multiplied by `factor`."""
        return Workload(
            self.prompts.scaled(factor),
            self.outputs.scaled(factor),
            scale_count(self.num_requests, factor),
            scale_prefixes(self.prefixes, factor),
        )

    def describe(self) -> str:
        """Describe token counts and prefixes in words."""
        prefixes = f", {self.prefixes.describe()}" if self.prefixes else ""
        return f"{self.prompts.describe('tokens in')}, {self.outputs.describe('out')}{prefixes}"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request: a prompt and the exact length of its answer."""

    index: int
    """Index in the workload, from 0."""
    prompt: str
    prompt_tokens: int
    output_tokens: int


@functools.cache
def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer, once per process. path: a folder with a tokenizer.json, or the file itself.

    Raises BenchError.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise BenchError(
            f"{file}: no such file; allowed: a tokenizer.json file or a folder that contains one"
        )
    try:
        return read_tokenizer(file)
    except ValueError as error:
        raise BenchError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    num_tokens: int
    """Tokens that the word adds to a text when it follows a space."""
    num_tokens_alone: int
    first_token: int
    """First token of a text that begins with the word."""


@dataclass(frozen=True, slots=True)
class RequestShape:
    """The size of one request."""

    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    """Ids of the blocks that the prompt begins with; see `Prefixes`."""


def draw_shapes(workload: Workload, seed: int) -> list[RequestShape]:
    """Draw the sizes of a workload's requests, without their text."""
    count = workload.num_requests
    # Separate generators: a change of one mean leaves the other token counts unchanged.
    prompt_tokens = workload.prompts.draw(count, random.Random(f"{seed}/in"))
    output_tokens = workload.outputs.draw(count, random.Random(f"{seed}/out"))
    shared = block_ids(workload.prefixes, prompt_tokens, random.Random(f"{seed}/prefixes"))
    return [RequestShape(*shape) for shape in zip(prompt_tokens, output_tokens, shared, strict=True)]


def make_requests(workload: Workload, tokenizer: Tokenizer, seed: int) -> tuple[BenchRequest, ...]:
    """Make the requests of a workload. Raises BenchError if no prompt has that many tokens with this tokenizer."""
    rng = random.Random(f"{seed}/{workload.prompts.mean:g}")
    shapes = draw_shapes(workload, seed)
    block_tokens = workload.prefixes.block_tokens if workload.prefixes else 0
    vocabulary = _vocabulary(tokenizer)
    words = sorted((word for word in vocabulary if word.num_tokens > 0), key=lambda word: word.num_tokens)
    own_tokens = [shape.prompt_tokens - len(shape.block_ids) * block_tokens for shape in shapes]
    openings = _openings(vocabulary, len(shapes), min(own_tokens), tokenizer, rng)
    blocks = {
        block: _words_of(block_tokens, words, random.Random(f"{seed}/block/{block}"))
        for block in sorted(set(chain.from_iterable(shape.block_ids for shape in shapes)))
    }
    requests = []
    for index, (opening, shape) in enumerate(zip(openings, shapes, strict=True)):
        beginning = " ".join([*chain.from_iterable(blocks[block] for block in shape.block_ids), opening])
        prompt = _prompt(beginning, shape.prompt_tokens, words, tokenizer, rng)
        requests.append(BenchRequest(index, prompt, shape.prompt_tokens, shape.output_tokens))
    return tuple(requests)


def _count(text: str, tokenizer: Tokenizer) -> int:
    """Count the tokens of a whole prompt as the server does."""
    return len(tokenizer.encode(text, add_special_tokens=True).ids)


@functools.cache
def _vocabulary(tokenizer: Tokenizer) -> tuple[_Word, ...]:
    """Return the words for prompts, sorted by text: single-token words and common words."""
    pieces = tokenizer.get_vocab(with_added_tokens=False)
    # Byte-level and sentencepiece tokenizers mark pieces after a space; other pieces may be the end of a longer word.
    marked = {piece[1:] for piece in pieces if piece[:1] in _SPACES}
    found = {
        piece
        for piece in marked or pieces
        if len(piece) in _WORD_LETTERS and piece.isascii() and piece.isalpha() and piece.islower()
    }
    texts = sorted(found.union(_COMMON_WORDS.split()))
    before = "and"
    base = len(tokenizer.encode(before, add_special_tokens=False).ids)
    alone = tokenizer.encode_batch(texts, add_special_tokens=False)
    later = tokenizer.encode_batch([f"{before} {text}" for text in texts], add_special_tokens=False)
    return tuple(
        _Word(text, len(after.ids) - base, len(first.ids), first.ids[0])
        for text, first, after in zip(texts, alone, later, strict=True)
    )


def _openings(
    vocabulary: Sequence[_Word], count: int, shortest_prompt: int, tokenizer: Tokenizer, rng: random.Random
) -> list[str]:
    """Return the first words of `count` prompts of at least `shortest_prompt` tokens.

    All start with different tokens or, if there are too few such words, with different words.
    """
    room = shortest_prompt - _count("", tokenizer)
    shortest: dict[int, _Word] = {}
    for word in vocabulary:
        other = shortest.get(word.first_token)
        if word.num_tokens_alone < (other.num_tokens_alone if other else room + 1):
            shortest[word.first_token] = word
    words = [word.text for word in shortest.values()]
    if not words:
        raise BenchError(
            f"cannot build prompts of {shortest_prompt} tokens with this tokenizer: "
            "every word is longer, special tokens included"
        )
    if count <= len(words):
        return rng.sample(words, count)
    length = 2
    while len(words) ** length < 2 * count and length < shortest_prompt:
        length += 1
    if len(words) ** length < count:
        raise BenchError(
            f"--requests: cannot build {count} different prompts of {shortest_prompt} tokens with this tokenizer;"
            " lower --requests or raise --input-tokens"
        )
    openings: dict[str, None] = {}
    while len(openings) < count:
        openings[" ".join(rng.choices(words, k=length))] = None
    return list(openings)


def _prompt(
    opening: str, wanted: int, words: Sequence[_Word], tokenizer: Tokenizer, rng: random.Random
) -> str:
    """Return a text of exactly `wanted` tokens that begins with `opening`. Raises BenchError."""
    added: list[str] = []
    for _ in range(_MAX_TRIES):
        text = " ".join([opening, *added])
        missing = wanted - _count(text, tokenizer)
        if missing == 0:
            return text
        more = _words_of(missing, words, rng)
        if more:
            added += more
        elif added:  # too long, or no word is short enough: remove some and draw again
            del added[-rng.randint(1, min(3, len(added))) :]
        else:
            break
    raise BenchError(
        f"cannot build prompts of {wanted} tokens with this tokenizer: "
        f"{opening[-_MAX_SHOWN:]!r} alone takes {_count(opening, tokenizer)} of them, special tokens included"
    )


def _words_of(num_tokens: int, words: Sequence[_Word], rng: random.Random) -> list[str]:
    """Draw random words of about `num_tokens` tokens, never more; empty if no word is that short."""
    found: list[str] = []
    usable = len(words)
    while num_tokens > 0:
        while usable and words[usable - 1].num_tokens > num_tokens:
            usable -= 1
        if not usable:
            break
        word = words[rng.randrange(usable)]
        found.append(word.text)
        num_tokens -= word.num_tokens
    return found
