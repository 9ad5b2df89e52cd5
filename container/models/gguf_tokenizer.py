"""The tokenizer of a model, built from the metadata of its GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gguf import TokenType
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
)

from container.models import gguf_pre_tokenizers
from container.models.gguf_config import Metadata, UnknownGguf
from container.models.gguf_pre_tokenizers import BEGIN_WITH_BOS, IGNORE_MERGES

WHOLE = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})
"""Types of tokens that are matched as a whole, as in llama.cpp."""
_PHI3_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
_SPACE = "▁"


def build_tokenizer(metadata: Metadata, tokens: Sequence[str], ids: Mapping[str, int | None]) -> Tokenizer:
    """Build the tokenizer with these tokens. Raises UnknownGguf.

    ids: ids of special tokens, by GGUF's names.
    """
    kind, pre = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    splitter = gguf_pre_tokenizers.splitter(pre) if kind == "gpt2" else None
    if splitter is None and kind != "llama":
        found = f"'{kind}' with pre-tokenizer '{pre}'" if pre else f"'{kind}' without a pre-tokenizer"
        allowed = f"'llama', or 'gpt2' with one of {', '.join(gguf_pre_tokenizers.supported())}"
        raise UnknownGguf(f"the GGUF file has an unsupported tokenizer (got {found}); allowed: {allowed}")
    begins, ends = (metadata.get(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos"))
    if begins is None:
        begins = kind == "llama" or pre in BEGIN_WITH_BOS
    try:
        if splitter is None:
            tokenizer = _sentencepiece(metadata, tokens)
        else:
            tokenizer = _byte_level(metadata, tokens, pre, splitter)
        _match_whole(tokenizer, metadata, tokens, ids)
        _begin_and_end(tokenizer, ids["bos"] if begins else None, ids["eos"] if ends else None)
    except Exception as error:  # the libraries raise errors of every type
        why = " ".join(str(error).split()) or type(error).__name__
        raise UnknownGguf(f"the tokenizer of the GGUF file cannot be built ({why})") from error
    return tokenizer


def _byte_level(metadata: Metadata, tokens: Sequence[str], pre: str | None, splitter: Any) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in IGNORE_MERGES))
    if (normalizer := gguf_pre_tokenizers.normalizer(pre)) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Metadata, tokens: Sequence[str]) -> Tokenizer:
    """Build a tokenizer with transformers, which derives the merges if the metadata have none."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import select_tokenizer_builder

    architecture = metadata["general.architecture"]
    arrays = {name: metadata.get(f"tokenizer.ggml.{name}") for name in ("scores", "merges")}
    known = {name: array for name, array in arrays.items() if array is not None}
    built = select_tokenizer_builder(architecture, "llama")({"tokens": tokens, **known}).backend_tokenizer
    tokenizer = Tokenizer(built.model)  # without the special tokens that are only transformers' defaults
    if architecture.startswith("gemma"):
        tokenizer.normalizer, tokenizer.pre_tokenizer = built.normalizer, built.pre_tokenizer
        tokenizer.decoder = built.decoder
    else:
        _prefix_as_sentencepiece(tokenizer, metadata.get("tokenizer.ggml.add_space_prefix") is not False)
    return tokenizer


def _prefix_as_sentencepiece(tokenizer: Tokenizer, adds_space: bool) -> None:
    """Make a tokenizer begin texts as SentencePiece and llama.cpp do: with one more space always, or never if
    `adds_space` is false. transformers' LlamaTokenizer adds a space only if there is none."""
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if adds_space else spaces
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)


def _match_whole(
    tokenizer: Tokenizer, metadata: Metadata, tokens: Sequence[str], ids: Mapping[str, int | None]
) -> None:
    """Match the special tokens in `ids`, and all of a type in `WHOLE`, wherever they are in a text.

    Phi-3's special tokens take the spaces and newlines after them, as in its tokenizer.json and in llama.cpp.
    """
    types = dict(enumerate(metadata.get("tokenizer.ggml.token_type") or ()))
    types |= {id_: TokenType.CONTROL for id_ in ids.values() if id_ is not None}
    phi3 = metadata["tokenizer.ggml.model"] == "llama" and metadata["general.architecture"] == "phi3"
    special: list[AddedToken] = []
    others: list[AddedToken] = []
    for id_, type_ in types.items():
        # transformers spells some of Gemma's user-defined tokens differently. The old spelling must not get a new id.
        if type_ in WHOLE and tokenizer.token_to_id(token := tokens[id_]) == id_:
            is_special = type_ != TokenType.USER_DEFINED
            rstrip = phi3 and is_special and token not in _PHI3_KEEPS_SPACES
            (special if is_special else others).append(AddedToken(token, normalized=False, rstrip=rstrip))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(others)


def _begin_and_end(tokenizer: Tokenizer, bos: int | None, eos: int | None) -> None:
    """Make texts begin with the token `bos` and end with `eos`. None: with no token."""
    first, last = ([] if id_ is None else [(str(tokenizer.id_to_token(id_)), id_)] for id_ in (bos, eos))
    single = [*(token for token, _ in first), "$A", *(token for token, _ in last)]
    pair = [*single, *("$B" if part == "$A" else part for part in single)]
    tokenizer.post_processor = processors.TemplateProcessing(single, pair, [*first, *last])
