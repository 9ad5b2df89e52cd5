"""Formatters of a `model.py` that leaves text generation to the server. They rewrite requests and responses."""

from __future__ import annotations

import ast
import inspect
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Self

from djl_python import Input, Output
from djl_python.encode_decode import decode, media_type
from djl_python.outputs import encode_json
from djl_python.request_io import RequestInput, Sequence, TextGenerationOutput, TextInput, Token

from engines.python.handlers.responses import plain_result, response_object
from engines.python.handlers.stages import Function, decorated_functions, with_options

logger = logging.getLogger(__name__)

_ROLLING_BACKENDS = ("vllm", "lmi-dist", "trtllm", "scheduler")
"""Values of `option.rolling_batch` with which LMI calls input formatters in the style of rolling batches."""
_DEFAULT_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""Content types that clients send if the user names none."""


class Formatters:
    """Handles calls from web processes, whose property `stage` is `input` or `output`."""

    def __init__(
        self, functions: Mapping[str, Function], properties: dict[str, str], takes_index: bool
    ) -> None:
        """takes_index: whether the functions take four values of `get_next_token`."""
        self._functions = functions
        self._properties: dict[str, Any] = dict(properties)
        self._takes_index = takes_index

    @classmethod
    def of(cls, module: ModuleType, properties: dict[str, str]) -> Self:
        return cls(decorated_functions(module), properties, _takes_index(inspect.getsource(module)))

    def __call__(self, inputs: Input) -> Output | None:
        if inputs.is_empty():
            if any(map(_takes_tokenizer, self._functions.values())):
                self._properties["tokenizer"] = _tokenizer(self._properties["model_path"])
            return None
        stage = inputs.get_property("stage")
        return Output().add(encode_json(self._body(inputs) if stage == "input" else self._answer(inputs)))

    def _body(self, inputs: Input) -> Any:
        """Return a request's body as rewritten by the input formatter."""
        function = self._functions["input_formatter"]
        if not self._takes_input(function):
            return with_options(function, self._properties, _decoded(inputs))
        request = with_options(function, self._properties, inputs)
        if not isinstance(request, RequestInput):
            return request
        text = getattr(request, "input_text", None)
        text = getattr(text, "input_ids", text)  # what a tokenizer returns, instead of its token ids
        if isinstance(request.output_formatter, str):
            request.parameters["output_formatter"] = request.output_formatter
        streams = {"stream": True} if request.parameters.pop("stream", False) else {}
        return {"inputs": text, "parameters": request.parameters, **streams}

    def _takes_input(self, function: Function) -> bool:
        """Return whether an input formatter gets an `Input`, by its annotations; else the decoded body.

        Without them, LMI passes an `Input` if `option.rolling_batch` names one of its backends.
        """
        if first := _first_type(function):
            return first.endswith("Input")
        options = self._properties
        rolling = options.get("rolling_batch") in _ROLLING_BACKENDS and options.get("async_mode") != "true"
        return rolling or _type_name(inspect.signature(function).return_annotation).endswith("Input")

    def _answer(self, inputs: Input) -> dict[str, Any]:
        """Apply the output formatter to each record, or to each token and join the results to a text per answer."""
        function = self._functions["output_formatter"]
        content = inputs.get_as_json()
        takes_six = _takes_six_arguments(function)
        reads_tokens = takes_six or _first_type(function).endswith(("RequestOutput", "TextGenerationOutput"))
        if reads_tokens:
            results = [
                "".join(
                    _text(function(*_six_arguments(output)) if takes_six else function(output))
                    for output in _outputs(answer, self._takes_index)
                )
                for answer in content["answers"]
            ]
        else:
            results = [
                plain_result(with_options(function, self._properties, response_object(record)))
                for record in content["records"]
            ]
        return {"results": results, "reads_tokens": reads_tokens}


def _decoded(inputs: Input) -> Any:
    """Decode a request as in LMI by its content type. A body of a client's default type is JSON."""
    kind = media_type(inputs.get_property("Content-Type"))
    if kind in _DEFAULT_TYPES or kind.endswith("+json"):
        return inputs.get_as_json()
    return decode(inputs, kind)


def _text(piece: Any) -> str:
    return piece.decode() if isinstance(piece, bytes | bytearray) else str(piece)


def _outputs(answer: dict[str, Any], takes_index: bool) -> Iterator[TextGenerationOutput]:
    """Yield an output once for each new token of its first sequence. Other sequences are complete from the start."""
    sequences = dict(enumerate(map(_sequence, answer["sequences"])))
    whole, num_before = sequences[0], answer["num_before"]
    growing = sequences[0] = Sequence(whole.tokens[:num_before], whole.top_tokens[:num_before])
    growing.cumulative_log_prob = _log_prob(growing.tokens)
    for sequence in sequences.values():
        sequence.returns_index = takes_index
    output = TextGenerationOutput(
        answer["id"],
        input=_input(answer),
        sequences=sequences,
        prompt_tokens_details=_tokens(answer.get("prompt_tokens", ())),
        other_sequences_indices=list(sequences)[1:],
    )
    for position, token in enumerate(whole.tokens[num_before:], num_before):
        output.finished = position == whole.last_token_index
        growing.set_next_token(token, output.finished)
        if whole.top_tokens:
            growing.set_next_top_tokens(whole.top_tokens[position])
        growing.cumulative_log_prob += _log_prob([token])
        growing.tokens_iterator.index = growing.top_tokens_iterator.index = position
        if output.finished:
            growing.finish_reason = whole.finish_reason
        yield output


def _six_arguments(output: TextGenerationOutput) -> tuple[Token, bool, bool, dict[str, Any], str, Any]:
    """Return the arguments of a formatter in the style of LMI before 0.28, for an output's newest token.

    They are the token, whether it is the first and the last one, details if the request has `details`, at the last
    token the whole text, and the request's id.
    """
    request: Any = output.input
    best = output.sequences[output.best_sequence_index]
    details: dict[str, Any] = {}
    if request.parameters.get("details"):
        details = {
            "finish_reason": best.finish_reason,
            "tokens": output.get_tokens_as_dict(output.best_sequence_index),
            "generated_tokens": len(best.tokens),
            "inputs": request.input_text,
            "parameters": request.parameters,
            "prompt_tokens": len(request.input_ids),
        }
    text = request.input_text if request.parameters.get("return_full_text") else ""
    if output.finished:
        text += "".join(token.text for token in best.tokens)
    return best.tokens[-1], len(best.tokens) == 1, output.finished, details, text, output.request_id


def _input(answer: dict[str, Any]) -> TextInput:
    parameters = answer["input"]["parameters"]
    return TextInput(answer["id"], server_parameters={**parameters}, **answer["input"])


def _tokens(entries: Iterable[dict[str, Any]]) -> list[Token]:
    return [
        Token(entry["id"], entry["text"], entry["log_prob"], entry.get("special_token")) for entry in entries
    ]


def _sequence(answer: dict[str, Any]) -> Sequence:
    tokens = _tokens(answer["tokens"])
    top_tokens = [_tokens(entry.get("top_tokens", ())) for entry in answer["tokens"]]
    reason = answer["finish_reason"]
    last = None if reason is None else len(tokens) - 1
    return Sequence(tokens, top_tokens if any(top_tokens) else [], _log_prob(tokens), reason, last)


def _log_prob(tokens: list[Token]) -> float:
    """Return the sum of the log-probabilities; NaN if one is unknown, as in beam search."""
    return sum((math.nan if token.log_prob is None else token.log_prob for token in tokens), 0.0)


def _first_type(function: Function) -> str:
    """Return the type name of a function's first parameter; empty if it has no annotation."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return "" if first is None else _type_name(first.annotation)


def _type_name(annotation: Any) -> str:
    """Return the name of an annotated type; empty without an annotation."""
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _takes_index(source: str) -> bool:
    """Return whether a file assigns the result of `get_next_token` to four targets, as for LMI from 0.32 on."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=[_, _, _, _])],
                value=ast.Call(func=ast.Attribute(attr="get_next_token")),
            ):
                return True
    return False


def _takes_six_arguments(function: Function) -> bool:
    """Return whether a function takes six positional arguments and needs more than the first."""
    parameters = inspect.signature(function).parameters.values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 6 and positional[1].default is inspect.Parameter.empty


def _takes_tokenizer(function: Function) -> bool:
    parameters = inspect.signature(function).parameters
    return "tokenizer" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _tokenizer(model_path: str) -> Any:
    """Return the model's tokenizer; None if transformers cannot load it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    except Exception as error:  # the formatters may not need it
        logger.warning("formatters get no tokenizer: %s", error)
        return None
