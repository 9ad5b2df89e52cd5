"""SageMaker's header for custom attributes, with LMI's syntax of names and values: `a=b;c=d`."""

from __future__ import annotations

import re

HEADER = "X-Amzn-SageMaker-Custom-Attributes"
VALID = re.compile(r"[\x20-\x7e]{0,1024}")


def pairs(attributes: str) -> list[tuple[str, str]]:
    """Return the names and values, without spaces around them. Items without a name or `=` are ignored."""
    items = (item.partition("=") for item in attributes.split(";"))
    return [(name.strip(), value.strip()) for name, equals, value in items if equals and name.strip()]
