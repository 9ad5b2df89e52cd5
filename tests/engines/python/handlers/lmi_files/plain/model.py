"""A stateful service behind a handle function, in the style of LMI's documentation of the Python mode."""

import logging
import os

from djl_python import Input, Output


class Service:
    def __init__(self):
        self.initialized = False

    def initialize(self, properties: dict):
        self.task = properties.get("task", "none")
        self.model_dir = properties["model_dir"]
        self.devices = [os.environ.get("CUDA_VISIBLE_DEVICES"), properties["device_id"]]
        self.initialized = True

    def inference(self, inputs: Input) -> Output:
        outputs = Output()
        try:
            data = inputs.get_as_json()
            answer = {
                "task": self.task,
                "folder": self.model_dir,
                "devices": self.devices,
                "text": data["inputs"].upper(),
                "tenant": inputs.get_property("tenant"),
                "id": inputs.get_properties()["requestId"],
            }
            outputs.add_as_json(answer)
            outputs.add_property("Content-Type", "application/json")
            outputs.add_property("X-Amzn-SageMaker-Custom-Attributes", "seen=yes")
        except Exception as e:
            logging.exception("plain inference failed")
            outputs = Output().error(str(e))
        return outputs


_service = Service()


def handle(inputs: Input) -> Output:
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    if inputs.is_empty():
        # initialization request
        return None
    return _service.inference(inputs)
