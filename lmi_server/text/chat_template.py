"""Render chat messages to prompt text with the model's own template.

Templates are Jinja programs from a model folder, so they run in Jinja's immutable sandbox, with limits on time and
memory, and with only the helpers that transformers provides. Requests cannot supply templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from types import MappingProxyType
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


def _content_forms(tree: nodes.Template) -> tuple[bool, bool]:
    """Return whether a template reads contents as lists of parts, and whether it also reads them as strings.

    A `for` over a content reads parts. Such a template reads strings too if it tests whether a content `is string`.
    """
    variables = {"content"}  # also the usual name of a macro's parameter
    assigned = [
        (assign.target.name, assign.node)
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name)
    ]
    while new := {name for name, value in assigned if _is_content(value, variables)} - variables:
        variables |= new
    reads_parts = any(_is_content(loop.iter, variables) for loop in tree.find_all(nodes.For))
    string_tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return reads_parts, any(_is_content(test.node, variables) for test in string_tests)


def _is_content(node: nodes.Node, variables: Set[str]) -> bool:
    """Whether an expression is the content of a message, or the result of filtering it.

    `variables`: names of variables that contain a content.
    """
    key = nodes.Const("content")
    match node:
        case nodes.Name():
            return node.name in variables
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Slice()):
            return _is_content(node.node, variables)
        case nodes.Getitem():
            return node.arg == key
        case nodes.Call(node=nodes.Getattr(attr="get")):
            return node.args[:1] == [key]
        case nodes.Filter() | nodes.CondExpr() | nodes.Or():
            return any(_is_content(child, variables) for child in node.iter_child_nodes())
    return False


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
            self._reads_parts, self._reads_strings = _content_forms(environment.parse(source))
            self._template = environment.limited_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_chars: int,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the prompt text, ready for the assistant's turn.

        Each content is a string or a list of text parts. The template gets it in the form that it reads.
        `variables`: further variables that the template may read, such as `enable_thinking`.

        Raises:
            InvalidRequest: the template rejects the messages, or takes too much time or memory for them.
            RenderedTooLong: the text exceeds `max_chars`.
        """
        parts: list[str] = []
        size = 0
        try:
            with self._environment.limits():
                contents = [{**message, "content": self._content(message["content"])} for message in messages]
                own = {"messages": contents, "tools": None, "documents": None, "add_generation_prompt": True}
                for part in self._template.generate({**variables, **self._special_tokens, **own}):
                    size += len(part)
                    if size > max_chars:
                        raise RenderedTooLong(f"messages: more than {max_chars} characters")
                    parts.append(part)
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(f"messages: the model's chat template refuses them: {error}") from error
        return "".join(parts)

    def _content(self, value: str | Sequence[Mapping[str, str]]) -> str | list[dict[str, str]]:
        texts = [value] if isinstance(value, str) else [part["text"] for part in value]
        # Templates that read both forms may read some messages, such as the system message, as strings only.
        if not self._reads_parts or (self._reads_strings and len(texts) == 1):
            return "\n".join(texts)
        return [{"type": "text", "text": text} for text in texts]
