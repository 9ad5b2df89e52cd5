"""Resources of the control plane by name, with the responses of `describe_*`, `delete_*` and `list_*`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from container.endpoint.api import arn, refused

_PAGE = 10
"""Default of `MaxResults`."""


class Resource(Protocol):
    """A model, an endpoint configuration or an endpoint."""

    created: float

    def state(self) -> dict[str, object]:
        """Return the fields in `list_*`, besides name and creation time."""

    def details(self) -> dict[str, object]:
        """Return the additional fields in `describe_*`."""


class Definition:
    """A model or an endpoint configuration: the fields of its `create_*` call."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.created = time.time()
        self.fields = fields

    def state(self) -> dict[str, object]:
        return {}

    def details(self) -> dict[str, object]:
        return {key: value for key, value in self.fields.items() if key != "Tags"}


R = TypeVar("R", bound=Resource)


class Collection(Generic[R]):
    """Resources of one kind by name."""

    def __init__(self, prefix: str, kind: str, noun: str) -> None:
        """prefix: of the API's fields, such as `Model` in `ModelName`. kind: in ARNs. noun: in error messages."""
        self.items: dict[str, R] = {}
        self._prefix = prefix
        self._kind = kind
        self._noun = noun

    def add(self, name: str, item: R) -> dict[str, object]:
        """Return the response of `create_*`. Raises ApiError if the name is in use, in any case."""
        if self.has_arn(resource := arn(self._kind, name)):
            raise refused(f'Cannot create already existing {self._noun} "{resource}".')
        self.items[name] = item
        return {f"{self._prefix}Arn": resource}

    def get(self, name: str) -> R:
        """Return the resource with this name. Raises ApiError if there is none."""
        found = self.items.get(name)
        if found is None:
            raise refused(f'Could not find {self._noun} "{arn(self._kind, name)}".')
        return found

    def has_arn(self, wanted: str) -> bool:
        return any(arn(self._kind, name) == wanted for name in tuple(self.items))

    def describe(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Return the response of `describe_*`. Raises ApiError."""
        name = params[f"{self._prefix}Name"]
        item = self.get(name)
        return {**self._summary(name, item), **item.details()}

    def delete(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Return the response of `delete_*`. Raises ApiError."""
        name = params[f"{self._prefix}Name"]
        self.get(name)
        self.items.pop(name, None)
        return {}

    def page(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Return a page of `list_*`, by default with the newest first."""
        by_name, status = params.get("SortBy") == "Name", params.get("StatusEquals")
        pairs = sorted(self.items.items(), key=lambda pair: pair[0] if by_name else pair[1].created)
        rows = [self._summary(*pair) for pair in pairs if params.get("NameContains", "") in pair[0]]
        if params.get("SortOrder", "Ascending" if by_name else "Descending") == "Descending":
            rows.reverse()
        rows = [
            row for row in rows if status in (None, row.get("EndpointStatus")) and _is_in_time(row, params)
        ]
        token = str(params.get("NextToken", "0"))
        start = int(token) if token.isdecimal() else 0
        end = start + params.get("MaxResults", _PAGE)
        return {f"{self._prefix}s": rows[start:end], **({"NextToken": str(end)} if end < len(rows) else {})}

    def _summary(self, name: str, item: R) -> dict[str, object]:
        prefix = self._prefix
        named = {f"{prefix}Name": name, f"{prefix}Arn": arn(self._kind, name), "CreationTime": item.created}
        return {**named, **item.state()}


def _is_in_time(row: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Return whether the times of a row are within the limits of `list_*`, such as `CreationTimeAfter`."""
    return all(
        params.get(f"{field}After", -math.inf) <= row.get(field, 0.0) < params.get(f"{field}Before", math.inf)
        for field in ("CreationTime", "LastModifiedTime")
    )
