"""The `output_formatter` decorator, and the types that decorated functions receive."""

from __future__ import annotations

from .input_parser import mark
from .request_io import RequestOutput, Sequence, TextGenerationOutput, Token

__all__ = ["RequestOutput", "Sequence", "TextGenerationOutput", "Token", "output_formatter"]

output_formatter = mark("output_formatter")
