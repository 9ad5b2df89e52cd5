"""Convert between HTTP content types and Python values."""

from __future__ import annotations

import csv
import io
from typing import Any

from . import np_util
from .inputs import Input
from .outputs import Output, encode_json

_JSON = "application/json"
ARRAYS = {
    "tensor/ndlist": np_util.to_nd_list,
    "tensor/npz": np_util.to_npz,
    "tensor/npy": np_util.to_npy,
    "application/x-npz": np_util.to_npz,
    "application/x-npy": np_util.to_npy,
}
"""Encoders of arrays, by content type."""
_CSV_COLUMNS = {"inputs", "question", "context"}


def decode(
    inputs: Input, content_type: str | None, key: str | None = None, require_csv_headers: bool = True
) -> Any:
    """Decode a request's content by its content type, by default JSON. Other types give {"inputs": bytes}.

    Of a form, only the part `key`, `data` or the first part is returned. Without a content type, missing content, as in
    the call that loads the worker, gives {"inputs": ""}.

    require_csv_headers: as in `decode_csv`.

    Raises:
        ValueError: the content is not valid for its type.
        KeyError: there is no part named `key`.
    """
    if not content_type and not inputs.get_as_bytes(key):
        return {"inputs": ""}
    kind = media_type(content_type or _JSON)
    if _JSON in kind:  # such as application/jsonlines
        return inputs.get_as_json(key)
    if kind == "text/plain":
        return {"inputs": [inputs.get_as_string(key)]}
    if kind == "text/csv":
        return decode_csv(inputs, require_csv_headers, key)
    if kind.startswith("image/"):
        return {"inputs": inputs.get_as_image(key)}
    if kind in ARRAYS:
        return {"inputs": inputs.get_as_numpy(key)}
    if kind == "application/x-www-form-urlencoded":
        return {"inputs": inputs.get_as_string(key)}
    return {"inputs": inputs.get_as_bytes(key)}


def decode_csv(inputs: Input, require_headers: bool = True, key: str | None = None) -> Any:
    """Return the values of the column `inputs`, or all rows, of a CSV with a header that has one of `_CSV_COLUMNS`.

    require_headers: False: any other CSV is returned as an array of numbers.
    Raises `ValueError` for any other CSV.
    """
    rows = inputs.get_as_csv(key)
    names = rows[0].keys() if rows else set()
    if _CSV_COLUMNS & {str(name).lower() for name in names}:
        return {"inputs": [row["inputs"] for row in rows] if "inputs" in names else rows}
    needed = f"the CSV needs a header with one of {', '.join(sorted(_CSV_COLUMNS))}"
    if require_headers:
        raise ValueError(needed)
    import numpy

    try:
        return numpy.loadtxt(io.StringIO(inputs.get_as_string(key)), delimiter=",", comments=None)
    except ValueError as error:
        raise ValueError(f"{needed}, or only numbers: {error}") from None


def encode(
    outputs: Output, prediction: Any, content_type: str | None = None, key: str | None = None
) -> Output:
    """Add a prediction to the outputs, and set the Content-Type header.

    content_type: of the response, or the value of an Accept header, whose first type is used. Defaults to JSON.
    Raises `ValueError` if the type is not supported.
    """
    wanted = media_type(content_type)
    if wanted in ("*/*", ""):
        wanted = _JSON
    if wanted in ARRAYS:
        data = ARRAYS[wanted](prediction)
    elif wanted == _JSON:
        data = encode_json(prediction, indent=2)
    elif wanted == "text/csv":
        data = encode_csv(prediction).encode()
    elif wanted.startswith("text/"):
        data = str(prediction).encode()
    else:
        raise ValueError(
            f"a response of type {content_type} is not supported (Accept); supported: {_JSON}, text/*,"
            f" {', '.join(ARRAYS)}"
        )
    outputs.add_property("Content-Type", wanted)
    return outputs.add(data, key)


def media_type(header: str | None) -> str:
    """Return the first media type of a Content-Type or Accept header, without parameters."""
    return (header or "").partition(",")[0].partition(";")[0].strip().lower()


def encode_csv(content: Any) -> str:
    """Write rows as CSV. Dictionaries get a header with the names of the first one."""
    rows = _as_list(content)
    text = io.StringIO()
    if rows and isinstance(rows[0], dict):
        named = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        named.writeheader()
        named.writerows(rows)
    else:
        csv.writer(text, lineterminator="\n").writerows(map(_as_list, rows))
    return text.getvalue()


def _as_list(value: Any) -> list[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else [value]
