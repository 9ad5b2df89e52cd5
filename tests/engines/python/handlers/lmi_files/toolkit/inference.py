"""The four functions of the SageMaker inference toolkit, with numpy arrays."""

import io
import json
import os

import numpy as np


def model_fn(model_dir):
    with open(os.path.join(model_dir, "scale.json")) as file:
        return json.load(file)["scale"]


def input_fn(request_body, request_content_type):
    if request_content_type == "application/json":
        return np.array(json.loads(request_body)["inputs"], dtype=float)
    if request_content_type == "text/csv":
        return np.loadtxt(io.StringIO(request_body), delimiter=",")
    raise ValueError(f"Unsupported content type: {request_content_type}")


def predict_fn(input_object, model):
    return input_object * model


def output_fn(prediction, accept):
    if accept == "text/csv":
        return "\n".join(str(value) for value in prediction.ravel())
    return json.dumps({"predictions": prediction.tolist()})
