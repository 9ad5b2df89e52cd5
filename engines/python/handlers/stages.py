"""A handler built from the functions of one file: load the model, read a request, predict, write the response.

The functions are decorated (`init_handler`, `input_formatter`, `prediction_handler`, `output_formatter`), or named as
in the SageMaker inference toolkit (`model_fn`, `input_fn`, `predict_fn`, `output_fn`; `transform_fn` replaces the last
three).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

from djl_python import Input, Output
from djl_python.encode_decode import ARRAYS, decode, encode, media_type
from djl_python.input_parser import MARK

Function = Callable[..., Any]
_JSON = "application/json"
TOOLKIT = ("model_fn", "input_fn", "predict_fn", "output_fn", "transform_fn")
_TEXT = (_JSON, "text/csv")
"""Content types whose bodies the toolkit's functions get as strings."""
_PREDICTORS = ("djl_python.sklearn_handler", "djl_python.xgboost_handler")
"""Entry points that pass a table to the prediction, and respond with `{"predictions": ...}`."""


@dataclass(frozen=True, slots=True)
class ToolkitContext:
    """Context that the toolkit passes to functions that accept one more argument."""

    model_dir: str
    request_content_type: str = ""
    accept_header: str = ""


def decorated_functions(module: ModuleType) -> dict[str, Function]:
    """Return the decorated functions of a module by role."""
    members = vars(module).values()
    return {getattr(value, MARK): value for value in members if callable(value) and hasattr(value, MARK)}


class Stages:
    """Calls the functions of one file in turn, for one request at a time."""

    def __init__(self, functions: dict[str, Function], properties: dict[str, str]) -> None:
        """functions: by role, or by name in the toolkit."""
        self._functions = functions
        self._properties = properties
        self._is_predictor = properties.get("entryPoint", "").strip() in _PREDICTORS
        self._model: Any = None

    @classmethod
    def of(cls, module: ModuleType, function: str, properties: dict[str, str]) -> Self:
        """Find the functions in a module. Raises `ImportError` if they cannot answer a request."""
        members = vars(module)
        functions = decorated_functions(module) or {
            name: members[name] for name in TOOLKIT if callable(members.get(name))
        }
        if not functions.keys() & {"prediction_handler", "predict_fn", "transform_fn"}:
            raise ImportError(
                f"{module.__file__} has no function {function!r}, no @prediction_handler, and neither predict_fn nor"
                " transform_fn"
            )
        return cls(functions, properties)

    def __call__(self, inputs: Input) -> Output | None:
        if inputs.is_empty():
            self._load()
            return None
        accept = inputs.get_property("Accept") or "*/*"
        content_type = inputs.get_property("Content-Type") or _JSON
        if any(name in self._functions for name in TOOLKIT):
            return self._toolkit(inputs, content_type, self._accepted(accept))
        if self._is_predictor:
            accept = self._accepted(accept)
        input_formatter = self._functions.get("input_formatter")
        data = (
            with_options(input_formatter, self._properties, inputs)
            if input_formatter
            else self._decoded(inputs, content_type)
        )
        predict = self._functions["prediction_handler"]
        result = with_options(predict, self._properties, self._table(data), self._model)
        formatter = self._functions.get("output_formatter")
        if formatter is None:
            return self._encoded(result, accept, content_type)
        return _as_output(formatter(result), accept, content_type)

    def _load(self) -> None:
        folder = self._properties["model_dir"]
        if init := self._functions.get("init_handler"):
            self._model = with_options(init, self._properties, folder)
        elif load := self._functions.get("model_fn"):
            self._model = _call(load, folder, context=ToolkitContext(folder))

    def _accepted(self, accept: str) -> str:
        """Return the content type for a toolkit function: the default if the client accepts anything."""
        default = self._properties.get("default_accept", _JSON)
        return default if accept.startswith("*/*") else accept

    def _toolkit(self, inputs: Input, content_type: str, accept: str) -> Output:
        context = ToolkitContext(self._properties["model_dir"], content_type, accept)
        if transform := self._functions.get("transform_fn"):
            body = _toolkit_body(inputs)
            return _as_output(
                _call(transform, self._model, body, content_type, accept, context=context), accept
            )
        if read := self._functions.get("input_fn"):
            data = _call(read, _toolkit_body(inputs), content_type, context=context)
        else:
            data = self._decoded(inputs, content_type)
        result = _call(self._functions["predict_fn"], self._table(data), self._model, context=context)
        write = self._functions.get("output_fn")
        if write is None:
            return self._encoded(result, accept, content_type)
        return _as_output(_call(write, result, accept, context=context), accept)

    def _decoded(self, inputs: Input, content_type: str) -> Any:
        """Return the decoded content of a request; for a predictor as an array. Raises `ValueError`."""
        data = decode(inputs, content_type, require_csv_headers=False)
        if not self._is_predictor:
            return data
        if isinstance(data, dict) and "inputs" not in data:
            raise ValueError("inputs: missing; accepted: a JSON array, or an object with inputs")
        import numpy

        return numpy.array(data["inputs"] if isinstance(data, dict) else data)

    def _table(self, data: Any) -> Any:
        """Return the data for the prediction. A predictor gets an array of one dimension as a table with one row."""
        return data.reshape(1, -1) if self._is_predictor and getattr(data, "ndim", 0) == 1 else data

    def _encoded(self, result: Any, accept: str, content_type: str) -> Output:
        """Encode the result of a prediction."""
        kind = _response_type(accept, content_type)
        if self._is_predictor and media_type(kind) == _JSON:
            result = {"predictions": result}
        return encode(Output(), result, kind)


def with_options(function: Function, options: Mapping[str, Any], *arguments: Any) -> Any:
    """Call a decorated function, and pass the options that it accepts as keyword arguments."""
    parameters = inspect.signature(function).parameters
    positional = list(parameters)[: len(arguments)]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    keywords = {
        name: text
        for name, text in options.items()
        if name not in positional and (takes_all or name in parameters)
    }
    return function(*arguments, **keywords)


def _call(function: Function, *arguments: Any, context: ToolkitContext) -> Any:
    """Call a toolkit function. The context is appended if the function takes one more argument."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return function(*arguments, context)
    return function(*arguments)


def _toolkit_body(inputs: Input) -> Any:
    """Return the body as the toolkit passes it to functions. Raises `ValueError` if a text is not UTF-8."""
    is_text = media_type(inputs.get_property("Content-Type")) in _TEXT
    return inputs.get_as_string() if is_text else inputs.get_as_bytes()


def _response_type(accept: str, content_type: str) -> str:
    """Return the content type of a response. If the client accepts anything, requests with arrays get arrays."""
    sent = media_type(content_type)
    return sent if media_type(accept) in ("*/*", "") and sent in ARRAYS else accept


def _as_output(result: Any, accept: str, content_type: str = "") -> Output:
    """Convert the result of a user's function (output, body, (body, content type), or any value) to an output."""
    if isinstance(result, Output):
        return result
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], str):
        result, accept = result
    if isinstance(result, str | bytes | bytearray):
        kind = media_type(accept)
        return Output().add_property("Content-Type", kind if kind not in ("", "*/*") else _JSON).add(result)
    return encode(Output(), result, _response_type(accept, content_type))
