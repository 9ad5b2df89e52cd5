"""A handler that reports the GPUs that its worker sees."""

import os

from djl_python import Input, Output

properties = {}


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        properties.update(inputs.get_properties())
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Output().add({"visible": visible, "device_id": properties["device_id"]})
