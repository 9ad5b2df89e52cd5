"""Render chat messages to prompt text with the model's own template.

Templates are Jinja programs from a model folder, so they run in Jinja's immutable sandbox, with limits on time and
memory, and with only the helpers that transformers provides. Requests cannot supply templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser

from engines.errors import InvalidRequest
from lmi_server.text.template_limits import LimitedEnvironment

# Errors that a template may raise for messages that it rejects. None of them is an error of the server.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class RenderedTooLong(InvalidRequest):
    """The rendered prompt is longer than the caller's limit."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks a training target. Rendered as its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """A model's compiled chat template and its special tokens."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`special_tokens`: `bos_token`, `eos_token` and so on, as templates name them.

        Raises `ValueError` if `source` is not a valid template.
        """
        environment = self._environment = LimitedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # the result is a prompt, not HTML
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.limited_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], max_chars: int) -> str:
        """Return the prompt text, ready for the assistant's turn.

        Raises:
            InvalidRequest: the template rejects the messages, or takes too much time or memory for them.
            RenderedTooLong: the text exceeds `max_chars`.
        """
        parts: list[str] = []
        size = 0
        try:
            with self._environment.limits():
                for part in self._template.generate(
                    messages=[dict(message) for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._special_tokens,
                ):
                    size += len(part)
                    if size > max_chars:
                        raise RenderedTooLong(f"messages: more than {max_chars} characters")
                    parts.append(part)
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(f"messages: the model's chat template refuses them: {error}") from error
        return "".join(parts)
