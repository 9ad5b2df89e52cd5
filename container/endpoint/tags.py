"""Tags of models, endpoint configurations and endpoints, by ARN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from container.endpoint.api import refused


class Tags:
    """Tags of all resources, with the operations of boto3's `sagemaker`."""

    def __init__(self, exists: Callable[[str], bool]) -> None:
        """exists: returns whether a resource has this ARN."""
        self._exists = exists
        self._values: dict[str, dict[str, str]] = {}
        """Values by ARN and key. A deleted resource may still have some."""

    def replace(self, resource: str, tags: Iterable[Mapping[str, str]]) -> None:
        """Set the tags of a new resource."""
        self._values[resource] = {tag["Key"]: tag["Value"] for tag in tags}

    def list(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Return the response of `list_tags`, always in one page. Raises ApiError."""
        return {"Tags": [{"Key": key, "Value": value} for key, value in self._of(params).items()]}

    def add(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Add or overwrite tags. Returns the response of `add_tags`. Raises ApiError."""
        self._of(params).update({tag["Key"]: tag["Value"] for tag in params["Tags"]})
        return self.list(params)

    def delete(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Return the response of `delete_tags`. Raises ApiError."""
        for key in params["TagKeys"]:
            self._of(params).pop(key, None)
        return {}

    def _of(self, params: Mapping[str, Any]) -> dict[str, str]:
        resource = params["ResourceArn"]
        if not self._exists(resource):
            raise refused(f'ResourceArn: could not find "{resource}".')
        return self._values.setdefault(resource, {})
