"""Errors of serving several models. `lmi_server/errors.py` has their HTTP statuses."""

from __future__ import annotations

from engines.errors import EngineError


class BadModel(EngineError):
    """A model's name, URL or files are invalid, or a request names no model."""

    kind = "bad_model"


class ModelNotFound(EngineError):
    """No model of this name is served."""

    kind = "model_not_found"


class AlreadyLoaded(EngineError):
    """A model of this name is loaded, or is being loaded."""

    kind = "already_loaded"


class NoMemory(EngineError):
    """There is not enough memory for the model."""

    kind = "out_of_memory"
