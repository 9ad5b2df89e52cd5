"""Conventions that go by a request's path, not by its body: `/v1/*` and `/invocations` read one body differently."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.errors import ErrorForm


@dataclass(frozen=True, slots=True)
class Conventions:
    """How a path is read and how it reports errors."""

    error_form: ErrorForm
    """The words that a failing stream ends with."""
    cut_to_context: bool
    """A longer output than the context has room for is cut, and ends with `length`; else it is refused."""
    completions_sample: bool
    """Completions have OpenAI's and the model's sampling defaults, as chats always have; else they are greedy."""


OPENAI = Conventions(ErrorForm.OPENAI, cut_to_context=False, completions_sample=True)
LMI = Conventions(ErrorForm.LMI, cut_to_context=True, completions_sample=False)
