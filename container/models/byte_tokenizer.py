"""A tokenizer for a model without one (`option.load_format=dummy`): each byte of a text is a token.

The 256 bytes get the first ids that are not special tokens in config.json (`eos_token_id` and similar). Every other id
of the vocabulary decodes to its number, as in `<300>`: texts never contain such tokens, but the model generates them.
Imports no transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmi_server.text.json_file import read_json

MAX_VOCABULARY = 1 << 21
"""Maximum number of entries, eight times as many as tokenizers of current models have."""
_NUM_BYTES = 256
_NAMES = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a model, according to its config.json."""

    size: int
    special: tuple[int, ...]
    """Sorted ids of special tokens."""


def read_vocabulary(model: Path) -> Vocabulary:
    """Read config.json and generation_config.json of the folder.

    Raises: ValueError, one sentence: the files are not valid, or the vocabulary is too small or too large.
    """
    config, generation = read_json(model / "config.json"), read_json(model / "generation_config.json")
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    if type(size) is not int:
        raise ValueError(f"{model / 'config.json'} has no vocab_size")
    special: set[int] = set()
    for value in (source.get(name) for source in (config, generation) for name in _NAMES):
        ids = value if isinstance(value, list) else [value]
        special.update(token for token in ids if type(token) is int and 0 <= token < size)
    least = _NUM_BYTES + len(special)
    if not least <= size <= MAX_VOCABULARY:
        raise ValueError(
            f"vocab_size is {size}; a byte-level tokenizer needs {least} to {MAX_VOCABULARY} entries"
        )
    return Vocabulary(size, tuple(sorted(special)))


def save(vocabulary: Vocabulary, file: Path) -> None:
    """Write the tokenizer.json of a vocabulary."""
    # Imported here, for the few models that need it.
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = [f"<|{token}|>" for token in vocabulary.special]
    entries = dict(zip(special, vocabulary.special, strict=True))
    free = iter(sorted(set(range(vocabulary.size)) - set(vocabulary.special)))
    for letter in _byte_letters():
        entries[letter] = next(free)
    for token in free:
        entries[f"<{token}>"] = token
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    tokenizer.save(str(file), pretty=False)


def _byte_letters() -> list[str]:
    """Return the character that `ByteLevel` uses for each byte: the byte if printable, else one from U+0100 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, hidden = [], 256
    for byte in range(_NUM_BYTES):
        letters.append(chr(byte if byte in shown else hidden))
        hidden += byte not in shown
    return letters
