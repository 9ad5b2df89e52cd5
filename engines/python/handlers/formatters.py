"""Formatters of a `model.py` that leaves text generation to the server. They rewrite requests and responses."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Self

from djl_python import Input, Output
from djl_python.outputs import encode_json
from djl_python.request_io import RequestInput, Sequence, TextGenerationOutput, Token

from engines.python.handlers.stages import Function, decorated_functions, with_options

logger = logging.getLogger(__name__)


class Formatters:
    """Handles calls from web processes, whose property `stage` is `input` or `output`."""

    takes_batches = False

    def __init__(self, functions: Mapping[str, Function], properties: dict[str, str]) -> None:
        self._functions = functions
        self._properties: dict[str, Any] = dict(properties)

    @classmethod
    def of(cls, module: ModuleType, properties: dict[str, str]) -> Self:
        return cls(decorated_functions(module), properties)

    def __call__(self, inputs: Input) -> Output | None:
        if inputs.is_empty():
            if any("tokenizer" in inspect.signature(one).parameters for one in self._functions.values()):
                self._properties["tokenizer"] = _tokenizer(self._properties["model_path"])
            return None
        stage = inputs.get_property("stage")
        return Output().add(encode_json(self._body(inputs) if stage == "input" else self._answer(inputs)))

    def _body(self, inputs: Input) -> Any:
        """Return a request's body as rewritten by the input formatter."""
        function = self._functions["input_formatter"]
        if not _first_type(function).endswith("Input"):
            return with_options(function, self._properties, inputs.get_as_json())
        request = with_options(function, self._properties, inputs)
        if not isinstance(request, RequestInput):
            return request
        text = getattr(request, "input_text", None)
        streams = {"stream": True} if request.parameters.pop("stream", False) else {}
        return {"inputs": text, "parameters": request.parameters, **streams}

    def _answer(self, inputs: Input) -> list[Any]:
        """Apply the output formatter to each record, or to each token and join the results to one text."""
        function = self._functions["output_formatter"]
        answer = inputs.get_as_json()
        if not _first_type(function).endswith(("RequestOutput", "TextGenerationOutput")):
            return [with_options(function, self._properties, record) for record in answer["records"]]
        tokens = answer["tokens"]
        pieces = []
        for place, token in enumerate(tokens):
            last = answer["finish_reason"] is not None and place == len(tokens) - 1
            sequence = Sequence([Token(**token)], complete=last, num_before=answer["num_before"] + place)
            sequence.finish_reason = answer["finish_reason"] if last else None
            piece = function(TextGenerationOutput(answer["id"], last, sequences={0: sequence}))
            pieces.append(piece.decode() if isinstance(piece, bytes | bytearray) else str(piece))
        return ["".join(pieces)]


def _first_type(function: Function) -> str:
    """Return the type name of a function's first parameter; empty if it has no annotation."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    annotation = first.annotation if first is not None and first.annotation is not first.empty else ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _tokenizer(model_path: str) -> Any:
    """Return the model's tokenizer; None if transformers cannot load it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        logger.warning("formatters get no tokenizer: %s", error)
        return None
