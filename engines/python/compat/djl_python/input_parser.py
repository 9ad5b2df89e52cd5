"""Decorators of `model.py` that mark functions for the server: of requests, predictions and the load."""

from __future__ import annotations

from ._marks import mark

input_formatter = mark("input_formatter")
prediction_handler = mark("prediction_handler")
init_handler = mark("init_handler")
SAGEMAKER_ADAPTER_IDENTIFIER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"
