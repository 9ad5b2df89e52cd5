"""Contents of messages in the form that a chat template reads: a string or a list of text parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lmi_server.apis.openai.messages import parse_messages
from lmi_server.text.chat_template import ChatTemplate

LLAMA_GUARD = (
    "{% for message in messages %}{{ message['role'] }}: {% for content in message['content'] %}"
    "{% if content['type'] == 'text' %}{{ content['text'] | trim }}{% endif %}{% endfor %};{% endfor %}"
)
GEMMA3 = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {{ message['role'] + ': ' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ ';' }}
{%- endfor -%}
"""
# The system message is read as a string only.
LLAMA32_VISION = """\
{%- set system_message = messages[0]['content'] | trim %}
{{- 'system: ' + system_message + ';' }}
{%- for message in messages[1:] %}
    {{- message['role'] + ': ' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for content in message['content'] %}
            {%- if content['type'] == 'text' %}
                {{- content['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- ';' }}
{%- endfor %}
"""
GLM = """\
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {{- item.text if item is mapping and item.type == 'text' else '' }}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {{ message.role }}: {{ visible_text(message.content) }};
{%- endfor -%}
"""
CHATML = "{% for message in messages %}{{ message.role + ': ' + message.content + ';' }}{% endfor %}"
LOOP = "{% for item in CONTENT %}{{ item.text }}|{% endfor %}"


# `tool_calls` has a content in one branch only.
TOOL_CALLS = """\
{%- for message in messages %}
    {%- if message.content is string and message.content[:1] == '[' %}
        {%- set tool_calls = message.content %}
    {%- else %}
        {%- set tool_calls = message.tool_calls %}
    {%- endif %}
    {%- for call in tool_calls %}{{- call }}{%- endfor %}
    {{- message.role + ': ' + message.content + ';' }}
{%- endfor %}
"""


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def render(source: str, messages: list[dict[str, Any]]) -> str:
    return ChatTemplate(source, {}).render(parse_messages(messages), 1000)


@pytest.mark.parametrize("content", ["Hello, world", parts("Hello, world"), parts("Hello", ", world")])
def test_a_template_that_only_reads_parts_gets_the_text(content: Any) -> None:
    assert render(LLAMA_GUARD, user(content)).replace(" ", "") == "user:Hello,world;"


@pytest.mark.parametrize("source", [GEMMA3, LLAMA32_VISION, GLM])
@pytest.mark.parametrize("content", [" one ", parts(" one "), parts("one ", "two"), parts("", "two")])
def test_a_template_that_reads_both_forms_renders_as_in_transformers(
    source: str, content: Any, model_folder: Path
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *user(content)]
    theirs = AutoTokenizer.from_pretrained(model_folder).apply_chat_template(
        messages, chat_template=source, tokenize=False
    )
    assert render(source, messages) == theirs


def test_a_single_part_is_a_string_for_a_template_that_reads_both_forms() -> None:
    messages = [{"role": "system", "content": parts("Be brief.")}, *user(parts("one", "two"))]
    assert render(LLAMA32_VISION, messages) == "system: Be brief.;user: onetwo;"


@pytest.mark.parametrize(
    ("content", "expected"), [("one", "one"), (parts("one"), "one"), (parts("one", "two"), "one\ntwo")]
)
def test_other_templates_get_one_string(content: Any, expected: str) -> None:
    assert render(CHATML, user(content)) == f"user: {expected};"


@pytest.mark.parametrize(
    "loop",
    [
        LOOP.replace("CONTENT", "messages[0]['content']"),
        LOOP.replace("CONTENT", "messages[0].content"),
        LOOP.replace("CONTENT", "messages[0].get('content')"),
        LOOP.replace("CONTENT", "messages[0].content[0:]"),
        LOOP.replace("CONTENT", "messages[0].content | selectattr('type', 'equalto', 'text')"),
        LOOP.replace("CONTENT", "((messages[0].content or []) if messages else [])"),
        "{% set a = messages[0].content %}{% set b = a | list %}" + LOOP.replace("CONTENT", "b"),
        "{% macro m(content) %}"
        + LOOP.replace("CONTENT", "content")
        + "{% endmacro %}{{ m(messages[0].content) }}",
    ],
)
def test_forms_of_loops_over_parts(loop: str) -> None:
    assert render(loop, user("one")) == "one|"
    assert render(loop, user(parts("one", "two"))) == "one|two|"


@pytest.mark.parametrize(
    "source",
    [
        "{% for line in messages[0].content.split('\n') %}{{ line }}|{% endfor %}",
        "{% set text = messages[0].content + '' %}{% for c in [text] %}{{ c | replace('\n', '|') }}|{% endfor %}",
    ],
)
def test_loops_over_something_else_leave_a_string(source: str) -> None:
    assert render(source, user("one\ntwo")) == "one|two|"
    assert render(source, user(parts("one", "two"))) == "one|two|"


@pytest.mark.parametrize("source", [GEMMA3, LLAMA32_VISION, GLM, LLAMA_GUARD])
def test_the_parts_of_other_messages_are_one_text(source: str) -> None:
    answer = {"role": "assistant", "content": parts("three", "four")}
    messages = [{"role": "system", "content": parts("one", "two")}, *user("Hi"), answer]
    joined = [{**message, "content": "\n".join(texts(message["content"]))} for message in messages]
    rendered = render(source, messages)
    assert rendered == render(source, joined)
    assert "one\ntwo" in rendered
    assert "three\nfour" in rendered


def texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def test_a_variable_that_is_only_sometimes_a_content_does_not_decide() -> None:
    assert render(TOOL_CALLS, user("one")) == "user: one;"
    assert render(TOOL_CALLS, user(parts("one", "two"))) == "user: one\ntwo;"


def test_a_variable_may_also_have_constants() -> None:
    source = "{% set a = '' %}{% if messages %}{% set a = messages[0].content %}{% set a = a | list %}"
    source += LOOP.replace("CONTENT", "a") + "{% endif %}"
    assert render(source, user(parts("one", "two"))) == "one|two|"
