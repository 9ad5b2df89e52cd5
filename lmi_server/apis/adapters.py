"""LoRA adapters are not supported. Every route refuses requests whose header or query selects one.

`parameters/unsupported.toml` has the fields of a body that select one.
"""

from __future__ import annotations

from flask import Request

from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.table import rows

_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"
_NAME = "adapter"


def refuse_adapters(request: Request) -> None:
    """Raise `InvalidField` if the header or the query selects an adapter."""
    row = rows(Names.LMI)[_NAME]
    row.check(_HEADER, request.headers.get(_HEADER, ""))
    for value in request.args.getlist(_NAME):
        row.check(_NAME, value)
