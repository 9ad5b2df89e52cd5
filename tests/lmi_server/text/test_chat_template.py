"""Chat templates: supported features, and limits that turn a runaway template into an invalid request."""

from __future__ import annotations

import resource
import time
from datetime import datetime
from typing import Any

import pytest

from engines.errors import InvalidRequest
from lmi_server.text import template_limits
from lmi_server.text.chat_template import ChatTemplate, RenderedTooLong

MESSAGES = [{"role": "user", "content": "Hi <b>"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, max_chars: int = 1000) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2024, 2, 29))
    return template.render(messages or MESSAGES, max_chars)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi <b>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <b>"}]'),
        ("{{ ['é漢😀'] | tojson }}", '["é漢😀"]'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "Hi <b>"\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("  {% if tools is none %}\n  none\n  {% endif %}\n", "  none\n"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2"),
        ("{{ eos_token is defined }}{{ add_generation_prompt }}", "FalseTrue"),
    ],
)
def test_renders(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"enable_thinking": False}, "off <s>"), ({"enable_thinking": True}, "on <s>"), ({}, "on <s>")],
)
def test_a_request_may_set_variables(variables: dict[str, Any], expected: str) -> None:
    source = (
        "{{ 'off' if enable_thinking is defined and enable_thinking is false else 'on' }} {{ bos_token }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(MESSAGES, 100, {**variables, "bos_token": "", "messages": []}) == expected


def test_the_reason_of_a_template_is_returned_to_the_client() -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses them: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 5 }}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ messages[7] + 'x' }}",
        "{{ 'abc' | truncate(2) }}",
        "{% for x in range(10000000) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_errors_in_a_template_are_invalid_requests(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"the model's chat template fails for these messages: ."):
        render(source)


def test_output_is_bounded() -> None:
    with pytest.raises(RenderedTooLong):
        render("{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}", max_chars=5000)


def test_contents_that_are_too_long_are_not_rendered() -> None:
    messages = [{"role": "user", "content": "x" * 500}, {"role": "user", "content": "x" * 501}]
    with pytest.raises(RenderedTooLong):
        render("{{ raise_exception('rendered') }}", messages, max_chars=1000)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% for a in range(99999) %}{% for b in range(99999) %}"
        "{% call f() %}{% endcall %}{% endfor %}{% endfor %}",
        "{% set check_time = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l = range(9999) | list %}{{ range(9999, 12000) | select('in', l) | list | length }}",
        "{% set l = range(9999) | list %}{{ ('x' * 2000) | reject('in', l) | list | length }}",
        "{{ (range(99999) | list * 5) | map('string') | join | length }}",
        "{{ ('ab ' * 300000) | title | title | title | title | length }}",
        "{% for x in [0] * 1000000 if ('a' * 1000000) == x %}{% endfor %}",
        "{{ ('a' * 9000000).replace('a', 'bc') | length }}" * 500,
        "{% set l = [0] * 1000000 %}{{ [" + "1 in l, " * 400 + "] }}",
    ],
)
def test_time_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_RENDER_SECONDS", 0.05)
    before = time.thread_time()
    with pytest.raises(
        InvalidRequest, match=r"chat template takes more than 0\.06 s for 1 message; accepted: a "
    ):
        render(source)
    assert time.thread_time() - before < 5.0


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**11 }}",
        "{{ [1] * 10**12 }}",
        "{{ 'x'.ljust(10**11) }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{% set n = namespace(x='x' * 10**6) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x ~ n.x ~ n.x %}"
        "{% endfor %}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(InvalidRequest, match="the model's chat template uses too much memory"):
        render(source)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'ab' | slice(10**12) | list }}",
        "{{ messages | batch(10**12, ' ') | list }}",
        "{{ 1.5 | round(10**9, 'ceil') }}",
        "{{ lipsum(n=10**9) }}",
        "{{ ([[1]] * 1000) | sum(start=[]) | length }}",
        "{{ ([[1]] * 1000) | sum(none, []) | length }}",
        "{{ ([1] * 1000001) | length }}",
        "{{ (1001 * (1, 2) * 1000) | length }}",
        "{{ ('ab' * 5000001) | length }}",
        "{{ ([1] * 100001) | sort | length }}",
        "{{ ([{'a': 1}] * 100001) | groupby('a') | length }}",
        "{{ ('a b ' * 250001) | title | length }}",
        "{{ ('a b ' * 250001) | wordcount }}",
    ],
)
def test_uninterruptible_operations_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"chat template (gives|computes|uses|fails)"):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{{ [3, 1, 2] | sort | join(',') }}{{ 'ba' | sort | first }}{{ {'b': 1, 'a': 2} | sort | last }}",
            "1,2,3ab",
        ),
        ("{{ [1, 2] | list | length }}{{ [1, 2] | reverse | list }}{{ ([1] * 3) | last }}", "2[2, 1]1"),
        ("{{ [] | map('nothing') | list }}{{ missing | select('odd') | list }}{{ missing | join }}", "[][]"),
        ("{{ [1, 2] | default(0) }}{{ [1] | string | upper }}{{ none | string }}", "[1, 2][1]None"),
        ("{{ [0.5, 1] | sum }}{{ [1] | sum(start=2.5) }}{{ messages | sum('n', 1) if 0 }}", "1.53.5"),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
            "Hi <b>",
        ),
        ("{% set g = ['a', 'b', 'c'] | select %}{{ g | first }}{{ g | list }}", "a['b', 'c']"),
        (
            "{{ range(5) | batch(2) | list }}{{ 'abc' | slice(2) | list }}",
            "[[0, 1], [2, 3], [4]][['a', 'b'], ['c']]",
        ),
        ("{{ ['b', 'B', 'a'] | unique | list }}{{ [2, 1] | min }}{{ [] | max }}", "['b', 'a']1"),
        ("{{ ('-' * 9 ~ 2 * 'ab' ~ [0] * 2) | length }}{{ 2 * 3.5 }}", "197.0"),
    ],
)
def test_filters_and_repetition_work_within_the_limits(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_syntax_error_is_reported_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"chat template, line 2: .*endfor"):
        ChatTemplate("x\n{% for a in b %}", {})


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% for a in b %}" * 30 + "{% endfor %}" * 30]
)
def test_a_template_that_is_nested_too_deeply_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="chat template: nested too deeply: "):
        ChatTemplate(source, {})
