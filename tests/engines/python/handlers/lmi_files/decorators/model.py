"""A model.py without a handle function, in the style of LMI's documentation of the scikit-learn handler."""

import json
import os

import numpy as np
from djl_python import Input
from djl_python.input_parser import init_handler, input_formatter, prediction_handler
from djl_python.output_formatter import output_formatter


@init_handler
def custom_init(model_dir, **kwargs):
    with open(os.path.join(model_dir, "weights.json")) as file:
        return np.array(json.load(file))


@input_formatter
def custom_input(inputs: Input, **kwargs):
    data = inputs.get_as_json()
    features = np.array(data.get("features", data.get("inputs")))
    return features.reshape(1, -1) if features.ndim == 1 else features


@prediction_handler
def custom_predict(X, model, **kwargs):  # noqa: N803
    return X @ model


@output_formatter
def custom_output(predictions):
    return {"predictions": predictions.tolist()}
