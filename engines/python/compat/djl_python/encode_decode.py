"""Convert between HTTP content types and Python values."""

from __future__ import annotations

import csv
import io
from typing import Any

from . import np_util
from .inputs import Input
from .outputs import Output, encode_json

_JSON = "application/json"
_ARRAYS = {
    "tensor/ndlist": np_util.to_nd_list,
    "tensor/npz": np_util.to_npz,
    "tensor/npy": np_util.to_npy,
    "application/x-npz": np_util.to_npz,
    "application/x-npy": np_util.to_npy,
}
"""Encoders of arrays, by content type."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_CSV_COLUMNS = {"inputs", "question", "context"}


def decode(
    inputs: Input, content_type: str | None, key: str | None = None, require_csv_headers: bool = True
) -> Any:
    """Decode a request's content by its content type. Defaults to JSON. Unknown types are returned as bytes.

    Without a content type, missing content, as in the call that loads the worker, gives {"inputs": ""}.

    require_csv_headers: as in `decode_csv`.

    Raises:
        ValueError: the content is not valid for its type.
        KeyError: there is no part named `key`.
    """
    if not content_type and not inputs.get_as_bytes(key):
        return {"inputs": ""}
    kind = (content_type or _JSON).partition(";")[0].strip().lower()
    if kind == _JSON:
        return inputs.get_as_json(key)
    if kind == "text/plain":
        return {"inputs": [inputs.get_as_string(key)]}
    if kind == "text/csv":
        return decode_csv(inputs, require_csv_headers, key)
    if kind.startswith("image/"):
        return {"inputs": inputs.get_as_image(key)}
    if kind in _ARRAYS:
        return {"inputs": inputs.get_as_numpy(key)}
    if kind.startswith("audio/"):
        return {"inputs": inputs.get_as_bytes(key)}
    if kind.startswith(_FORMS):
        return {"inputs": {name: bytes(value).decode() for name, value in inputs.get_content()}}
    return inputs.get_as_bytes(key)


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
    outputs: Output,
    prediction: Any,
    accept: str | None = None,
    content_type: str | None = None,
    key: str | None = None,
) -> Output:
    """Add a prediction to the outputs in the type that the client accepts, and set the Content-Type header.

    content_type: the request's. If the client accepts anything, requests with arrays get arrays.
    Raises `ValueError` if the client accepts no supported type.
    """
    wanted = (accept or "*/*").partition(",")[0].partition(";")[0].strip().lower()
    if wanted in ("*/*", ""):
        sent = (content_type or "").partition(";")[0].strip().lower()
        wanted = sent if sent in _ARRAYS else _JSON
    if wanted in _ARRAYS:
        data = _ARRAYS[wanted](prediction)
    elif wanted == _JSON:
        data = encode_json(prediction, indent=2)
    elif wanted == "text/csv":
        data = _encode_csv(prediction)
    elif wanted.startswith("text/"):
        data = str(prediction).encode()
    else:
        raise ValueError(
            f"Accept: {accept} is not supported; supported: {_JSON}, text/*, {', '.join(_ARRAYS)}"
        )
    outputs.add_property("Content-Type", wanted)
    return outputs.add(data, key)


def _encode_csv(prediction: Any) -> bytes:
    """Write rows as CSV. Dictionaries get a header with the names of the first one."""
    rows = _as_list(prediction)
    text = io.StringIO()
    if rows and isinstance(rows[0], dict):
        named = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        named.writeheader()
        named.writerows(rows)
    else:
        csv.writer(text, lineterminator="\n").writerows(map(_as_list, rows))
    return text.getvalue().encode()


def _as_list(value: Any) -> list[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else [value]
