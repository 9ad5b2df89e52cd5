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
from lmi_server.text.template_limits import LimitedEnvironment, TemplateLimitError

# Errors that a template may raise for messages that it does not expect. None of them is an error of the server.
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
_MAX_SOURCE_CHARS = 200_000
"""Compiling takes kilobytes of memory per character. Templates of known models are below 100,000 characters."""


class RenderedTooLong(InvalidRequest):
    """The rendered prompt is longer than the caller's limit."""


class _Refusal(jinja2.TemplateError):
    """The template rejects the messages, with a reason."""


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
    raise _Refusal(message)


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
    variables = _content_variables(tree)
    reads_parts = any(_is_content(loop.iter, variables) for loop in tree.find_all(nodes.For))
    string_tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return reads_parts, any(_is_content(test.node, variables) for test in string_tests)


def _content_variables(tree: nodes.Template) -> Set[str]:
    """Return the names of variables that contain a content: all their values are contents or constants."""
    values: dict[str, list[nodes.Node]] = {}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name):
            values.setdefault(assign.target.name, []).append(assign.node)
    variables = {"content"}  # also the usual name of a macro's parameter
    while new := {name for name in values if _only_contents(name, values[name], variables)} - variables:
        variables |= new
    return variables


def _only_contents(name: str, values: Sequence[nodes.Node], variables: Set[str]) -> bool:
    """Return whether at least one of a variable's values is a content, and the others are contents or constants."""
    same = {*variables, name}  # a value may be made from an earlier one
    return any(_is_content(value, variables) for value in values) and all(
        isinstance(value, nodes.Const) or _is_content(value, same) for value in values
    )


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
        additional_special_tokens: Sequence[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`special_tokens`: `bos_token`, `eos_token` and so on, as templates name them.

        Raises `ValueError` if `source` is not a valid template, or too long.
        """
        if len(source) > _MAX_SOURCE_CHARS:
            size = f"{len(source)} characters"
            raise ValueError(f"chat template: too long (got {size}); allowed: {_MAX_SOURCE_CHARS}")
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
        except (RecursionError, SyntaxError) as error:  # also limits of Python's compiler
            raise ValueError(f"chat template: nested too deeply: {error}") from error
        self._special_tokens = {
            "additional_special_tokens": list(additional_special_tokens),
            **special_tokens,
        }

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
            RenderedTooLong: the contents or the text exceed `max_chars`.
        """
        contents = [{**message, "content": self._content(message)} for message in messages]
        num_chars = _num_chars(contents)
        if num_chars > max_chars:
            raise _too_long(max_chars)
        own = {"messages": contents, "tools": None, "documents": None, "add_generation_prompt": True}

        def generate() -> str:
            parts: list[str] = []
            size = 0
            for part in self._template.generate({**variables, **self._special_tokens, **own}):
                size += len(part)
                if size > max_chars:
                    raise _too_long(max_chars)
                parts.append(part)
            return "".join(parts)

        try:
            return self._environment.run(generate, len(messages), num_chars)
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(f"messages: the model's chat template {_predicate(error)}") from error

    def _content(self, message: Mapping[str, Any]) -> str | list[dict[str, str]]:
        value = message["content"]
        texts = [value] if isinstance(value, str) else [part["text"] for part in value]
        if message["role"] != "user":
            # Many templates loop over the parts of the user's messages only.
            texts = ["\n".join(texts)]
        # Templates that read both forms may read some messages, such as the system message, as strings only.
        if not self._reads_parts or (self._reads_strings and len(texts) == 1):
            return "\n".join(texts)
        return [{"type": "text", "text": text} for text in texts]


def _too_long(max_chars: int) -> RenderedTooLong:
    return RenderedTooLong(f"messages: more than {max_chars} characters")


def _num_chars(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of characters of the contents of messages."""
    contents = [message["content"] for message in messages]
    parts = [part["text"] for content in contents if isinstance(content, list) for part in content]
    return sum(len(text) for text in (*contents, *parts) if isinstance(text, str))


def _predicate(error: Exception) -> str:
    """Describe an error of a template, as the rest of a sentence that begins with the template."""
    if isinstance(error, TemplateLimitError):
        return str(error)
    if isinstance(error, _Refusal):
        return f"refuses them: {error}"
    return f"fails for these messages: {error}"
