"""A handler with its own package, which is a wheel in the folder `requirements`."""

import numpy
import shouting
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    text = shouting.shout(inputs.get_as_string())
    return Output().add(f"{text} with numpy {numpy.__version__}")
