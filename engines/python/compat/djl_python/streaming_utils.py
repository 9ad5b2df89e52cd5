"""Stream text from a transformers model, step by step. Requires transformers and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from transformers.generation.streamers import BaseStreamer

STREAM_THREAD = "djl_python stream"
"""Name of the threads that run `generate`."""
_SAMPLING = ("temperature", "top_p", "top_k", "typical_p")
_STREAM_ONLY_PARAMETERS = ("manual_seed", "beam_size", "engine")
"""Parameters of streams that `generate` does not take."""


class HFStreamer(BaseStreamer):  # type: ignore[misc]
    """Iterator over the steps of a `generate` call in another thread. A step is a list with each row's new text."""

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        self._tokenizer = tokenizer
        self._skips_prompt = skip_prompt
        self._decode_kwargs = decode_kwargs
        self._tokens: list[list[int]] = []
        self._texts: list[str] = []
        self._steps: SimpleQueue[list[str] | BaseException | None] = SimpleQueue()
        self._stopped = False

    def put(self, value: Any) -> None:
        """Add the tokens of a step, [num_rows], or of the prompts, [num_rows, length]."""
        if self._stopped:
            raise RuntimeError("the stream is no longer read")
        is_prompt = value.dim() > 1
        rows = value.tolist() if is_prompt else [[token] for token in value.tolist()]
        self._tokens = self._tokens or [[] for _ in rows]
        self._texts = self._texts or [""] * len(rows)
        texts = [self._new_text(number, tokens) for number, tokens in enumerate(rows)]
        if not (is_prompt and self._skips_prompt):
            self._steps.put(texts)

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, with an error if there is one. Only decodes without one: decoding may be what failed."""
        if error is None:
            texts = [self._new_text(number, (), last=True) for number in range(len(self._tokens))]
            if any(texts):
                self._steps.put(texts)
        self._steps.put(error)

    def close(self) -> None:
        """Make `generate` stop at its next step."""
        self._stopped = True

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        """Return the next step. Raises: any error of `generate`."""
        step = self._steps.get()
        if isinstance(step, BaseException):
            raise step
        if step is None:
            raise StopIteration
        return step

    def _new_text(self, number: int, tokens: Sequence[int], last: bool = False) -> str:
        """Return a row's new text. Decodes the whole row: a token alone may lose spaces or be part of a character."""
        self._tokens[number] += tokens
        text = self._tokenizer.decode(self._tokens[number], **self._decode_kwargs)
        if text.endswith("\N{REPLACEMENT CHARACTER}") and not last:
            return ""
        new = text[len(self._texts[number]) :]
        self._texts[number] = text
        return str(new)


class StreamingUtils:
    """Streams for handlers, under LMI's names."""

    DEFAULT_MAX_NEW_TOKENS = 50
    BUILTIN_ENGINES = ("DeepSpeed", "Accelerate", "transformers-neuronx")

    @staticmethod
    def use_hf_default_streamer(
        model: Any, tokenizer: Any, inputs: Any, device: Any, **kwargs: Any
    ) -> Iterator[list[str]]:
        """Stream `model.generate(**kwargs)`. The first step has the prompts.

        inputs: texts; device: None means the model's.
        """
        return _stream(
            model, tokenizer, inputs, device, HFStreamer(tokenizer, skip_special_tokens=True), kwargs
        )

    @staticmethod
    def get_stream_generator(execution_engine: str) -> Callable[..., Iterator[list[str]]]:
        """Return the function (model, tokenizer, inputs, device, **parameters) that streams new text.

        Raises `ValueError` if there is no such engine.
        """
        if execution_engine not in StreamingUtils.BUILTIN_ENGINES:
            raise ValueError(f"{execution_engine} engine is not supported for streaming")
        return _stream_generator


def _stream_generator(
    model: Any, tokenizer: Any, inputs: Sequence[str], device: Any = None, **kwargs: Any
) -> Iterator[list[str]]:
    if isinstance(inputs, str) or not inputs:
        raise ValueError("inputs of a stream must be a list of at least one text")
    if (beams := int(kwargs.get("beam_size", 1))) > 1:
        raise ValueError(f"beam_size: beam search is not supported in a stream (got {beams}); allowed: 1")
    if "manual_seed" in kwargs:
        import torch

        torch.manual_seed(int(kwargs["manual_seed"]))
    kwargs.setdefault("max_new_tokens", StreamingUtils.DEFAULT_MAX_NEW_TOKENS)
    kwargs.setdefault("do_sample", any(name in kwargs for name in _SAMPLING))
    for name in _STREAM_ONLY_PARAMETERS:
        kwargs.pop(name, None)
    streamer = HFStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    return _stream(model, tokenizer, inputs, device, streamer, kwargs)


def _stream(
    model: Any, tokenizer: Any, inputs: Any, device: Any, streamer: HFStreamer, kwargs: dict[str, Any]
) -> Iterator[list[str]]:
    """Run `generate` in a thread, and yield its steps. Closing the stream early stops the thread."""
    if not tokenizer.pad_token:
        tokenizer.pad_token = tokenizer.eos_token
    side = "right" if model.config.is_encoder_decoder else "left"
    encoded = tokenizer(inputs, padding=True, padding_side=side, return_tensors="pt")
    target = model.device if device is None else device
    tokens = {name: encoded[name].to(target) for name in ("input_ids", "attention_mask")}

    def generate() -> None:
        try:
            model.generate(**tokens, streamer=streamer, **{"pad_token_id": tokenizer.pad_token_id, **kwargs})
        except BaseException as error:  # top level of the thread: the reader re-raises the error
            streamer.end(error)

    Thread(target=generate, name=STREAM_THREAD, daemon=True).start()
    try:
        yield from streamer
    finally:
        streamer.close()
