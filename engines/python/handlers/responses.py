"""Responses as an output formatter receives them: dictionaries that can also be used like vLLM's response objects."""

from __future__ import annotations

from typing import Any

from djl_python.outputs import encode_json

_MODEL = "lmi"
"""Model name of LMI's responses to `inputs`."""


class ResponseObject(dict[str, Any]):
    """A JSON object whose keys are attributes too, with the methods of pydantic that formatters for LMI use."""

    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else self._missing(name)

    def _missing(self, name: str) -> Any:
        """Return the value of an attribute for which there is no key."""
        raise AttributeError(f"the response has no field {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"the response has no field {name!r}")
        del self[name]

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """Return a copy that consists of plain dictionaries. Other options of pydantic have no effect."""
        return {
            name: _plain(value, exclude_none)
            for name, value in self.items()
            if not (exclude_none and value is None)
        }

    def model_dump_json(self, *, indent: int | None = None, exclude_none: bool = False, **_: Any) -> str:
        """Return the response as JSON."""
        return encode_json(self.model_dump(exclude_none=exclude_none), indent).decode()


class GeneratedText(ResponseObject):
    """A response in LMI's format, or a record of a stream. `choices[0].text` is its text, as in vLLM's responses."""

    def _missing(self, name: str) -> Any:
        if name == "choices":
            return [_Choice(self)]
        return _MODEL if name == "model" else super()._missing(name)


class _Choice(ResponseObject):
    """The choice of a response in LMI's format. A new text is also the new text of the response."""

    def __init__(self, response: GeneratedText) -> None:
        token = response.get("token")
        owner, field = (response, "generated_text") if token is None else (token, "text")
        details = response.get("details") or {}
        super().__init__(index=0, text=owner[field], finish_reason=details.get("finish_reason"))
        self.__dict__.update(_owner=owner, _field=field)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "text":
            self._owner[self._field] = value


class StreamedChoice(ResponseObject):
    """A choice in a record of a chat's stream. Its `delta` is its `message` too."""

    def _missing(self, name: str) -> Any:
        return self.delta if name == "message" else super()._missing(name)


class Delta(ResponseObject):
    """New text of a choice. Without a text, `content` is None."""

    def _missing(self, name: str) -> Any:
        return None if name == "content" else super()._missing(name)


def response_object(value: Any) -> Any:
    """Convert a JSON value to one whose objects can be used like vLLM's response objects."""
    if isinstance(value, list):
        return [response_object(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {name: response_object(item) for name, item in value.items()}
    if isinstance(fields.get("delta"), dict):
        return StreamedChoice({**fields, "delta": Delta(fields["delta"])})
    is_text = "generated_text" in fields or isinstance(fields.get("token"), dict)
    return GeneratedText(fields) if is_text else ResponseObject(fields)


def plain_result(result: Any) -> Any:
    """Return the result of a formatter as a value of JSON. Objects of pydantic become dictionaries."""
    return result.model_dump() if hasattr(result, "model_dump") else result


def _plain(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, ResponseObject):
        return value.model_dump(exclude_none=exclude_none)
    if isinstance(value, list):
        return [_plain(item, exclude_none) for item in value]
    return value
