"""A handler that fails to load in the way that a file specifies."""

import os
from pathlib import Path

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        path = Path(inputs.get_property("how"))
        how = path.read_text() if path.exists() else ""
        if how == "raise once":
            path.unlink()
        if how.startswith("raise"):
            raise RuntimeError("there are\nno weights")
        if how == "error":
            return Output().error("the model is too large", code=507)
        if how == "import":
            import no_such  # noqa: F401
        if how == "exit":
            os._exit(9)
        return None
    return Output().add(str(os.getpid()))
