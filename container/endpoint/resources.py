"""Models, endpoint configurations and endpoints by name: what describe, list and delete need of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from container.endpoint.api import arn, refused

_PAGE = 10
"""Items of a list without `MaxResults`."""


class Named(Protocol):
    """A model, a configuration or an endpoint."""

    created: float

    def summary(self) -> dict[str, object]: ...

    def describe(self) -> dict[str, object]: ...


class Definition:
    """A model or an endpoint configuration: the fields that it was created with."""

    def __init__(self, prefix: str, kind: str, fields: Mapping[str, Any]) -> None:
        self.created = time.time()
        self.fields = fields
        name = fields[f"{prefix}Name"]
        self._summary = {f"{prefix}Name": name, f"{prefix}Arn": arn(kind, name), "CreationTime": self.created}

    def summary(self) -> dict[str, object]:
        return dict(self._summary)

    def describe(self) -> dict[str, object]:
        return {**{key: value for key, value in self.fields.items() if key != "Tags"}, **self._summary}


N = TypeVar("N", bound=Named)


class Collection(Generic[N]):
    """Resources of one kind by name."""

    def __init__(self, prefix: str, kind: str, noun: str) -> None:
        """prefix: of the API's fields, such as `Model` in `ModelName`. kind: in resource names."""
        self.prefix = prefix
        self._kind = kind
        self._noun = noun
        self._items: dict[str, N] = {}

    def add(self, name: str, item: N) -> dict[str, object]:
        """Returns the answer to `create_*`. Raises ApiError: the name is in use."""
        if self._items.setdefault(name, item) is not item:
            raise refused(f'Cannot create already existing {self._noun} "{arn(self._kind, name)}".')
        return {f"{self.prefix}Arn": arn(self._kind, name)}

    def get(self, name: str) -> N:
        """Raises ApiError: there is none."""
        found = self._items.get(name)
        if found is None:
            raise refused(f'Could not find {self._noun} "{arn(self._kind, name)}".')
        return found

    def find(self, name: str) -> N | None:
        return self._items.get(name)

    def remove(self, name: str) -> None:
        self._items.pop(name, None)

    def values(self) -> Sequence[N]:
        return tuple(self._items.values())

    def describe(self, params: Mapping[str, Any]) -> dict[str, object]:
        """The answer to `describe_*`. Raises ApiError."""
        return self.get(params[f"{self.prefix}Name"]).describe()

    def delete(self, params: Mapping[str, Any]) -> dict[str, object]:
        """The answer to `delete_*`. Raises ApiError."""
        name = params[f"{self.prefix}Name"]
        self.get(name)
        self.remove(name)
        return {}

    def page(self, params: Mapping[str, Any]) -> dict[str, object]:
        """A page of a list; the newest first, if nothing else is asked for."""
        name = f"{self.prefix}Name"
        by_name = params.get("SortBy") == "Name"
        found = sorted(self.values(), key=lambda one: str(one.summary()[name]) if by_name else one.created)
        if params.get("SortOrder", "Descending" if not by_name else "Ascending") == "Descending":
            found.reverse()
        rows = [one.summary() for one in found]
        rows = [row for row in rows if params.get("NameContains", "") in str(row[name])]
        if wanted := params.get("StatusEquals"):
            rows = [row for row in rows if row["EndpointStatus"] == wanted]
        token = str(params.get("NextToken", "0"))
        start = int(token) if token.isdecimal() else 0
        end = start + params.get("MaxResults", _PAGE)
        return {f"{self.prefix}s": rows[start:end], **({"NextToken": str(end)} if end < len(rows) else {})}
