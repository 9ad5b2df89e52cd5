"""Limits of templates: what long chats may use, and how a rendering that takes too long is stopped."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from threading import Thread
from typing import Any

import pytest

from engines.errors import InvalidRequest
from lmi_server.text import template_limits
from lmi_server.text.chat_template import ChatTemplate

NESTED = "{% set n = namespace(a=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
QUADRATIC = "{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}ok"


def chat(num_messages: int = 1, text: str = "Hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}] * num_messages


def render(source: str, messages: list[dict[str, Any]], now: Callable[[], datetime] = datetime.now) -> str:
    return ChatTemplate(source, {}, now=now).render(messages, 1_000_000)


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_RENDER_SECONDS", 0.05)


def test_loops_rarely_read_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some templates loop over every character of a text."""
    reads: list[float] = []
    clock = time.thread_time

    def read() -> float:
        reads.append(clock())
        return reads[-1]

    monkeypatch.setattr(time, "thread_time", read)
    source = (
        "{% if messages[0].content is string %}{% for c in messages[0].content %}{% endfor %}{% endif %}ok"
    )
    assert render(source, chat(text="x" * 3200)) == "ok"
    assert 100 <= len(reads) <= 110


@pytest.mark.parametrize("messages", [chat(200), chat(1, "x" * 100_000)])
def test_the_time_limit_grows_with_the_chat(
    messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "MAX_RENDER_SECONDS", 0.0)
    assert render(QUADRATIC, messages) == "ok"


@pytest.mark.parametrize(
    ("num_messages", "limit"), [(1, r"0\.05 s for 1 message"), (99, r"0\.05 s for 99 messages")]
)
def test_a_rendering_that_takes_too_long_is_refused(
    num_messages: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "_MAX_SECONDS", 0.05)
    expected = f"messages: the model's chat template takes more than {limit}; accepted: a shorter chat"
    with pytest.raises(InvalidRequest, match=expected):
        render(ENDLESS, chat(num_messages))


@pytest.mark.parametrize(
    "source",
    [
        NESTED + "{{ n.a | string | length }}",
        NESTED + "{{ n.a | tojson | length }}",
        NESTED + "{{ n.a | pprint | length }}",
        "{{ ('a' * 999999) | wordwrap(1) | length }}",
    ],
)
@pytest.mark.usefixtures("short_time")
def test_a_timer_stops_long_operations(source: str) -> None:
    space = resource.getrlimit(resource.RLIMIT_AS)
    before = time.thread_time()
    with pytest.raises(InvalidRequest, match="the model's chat template takes more than"):
        render(source, chat())
    assert time.thread_time() - before < 2.0
    assert resource.getrlimit(resource.RLIMIT_AS) == space
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert render("{{ messages | tojson | length }}", chat()) == "35"


@pytest.mark.parametrize("source", ["ok", "{{ 1 / 0 }}", "{{ 'x' * 10**11 }}", ENDLESS])
@pytest.mark.usefixtures("short_time")
def test_garbage_collection_goes_on_after_each_rendering(source: str) -> None:
    with contextlib.suppress(InvalidRequest):
        render(source, chat())
    assert gc.isenabled()


def test_the_timer_blames_only_the_rendering() -> None:
    """The timer counts the time of all threads, and its signal may be late."""

    def now() -> datetime:
        signal.raise_signal(signal.SIGVTALRM)
        return datetime(2024, 2, 29)

    assert render("{{ strftime_now('%Y') }}", chat(), now) == "2024"
    signal.raise_signal(signal.SIGVTALRM)


def test_tokenizing_threads_add_to_the_address_space() -> None:
    """Their library ends the process if it gets no memory."""
    limits: list[int] = []

    def now() -> datetime:
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
        return datetime(2024, 2, 29)

    for num_chars in (0, 1 << 22):
        with template_limits.tokenizes_in_thread(num_chars):
            render("{{ strftime_now('%Y') }}", chat(), now)
    assert limits[1] - limits[0] > 1 << 31


@pytest.mark.usefixtures("short_time")
def test_other_threads_than_the_main_one_have_the_limits_of_loops() -> None:
    errors: list[str] = []

    def run() -> None:
        try:
            render(ENDLESS, chat())
        except InvalidRequest as error:
            errors.append(str(error))

    thread = Thread(target=run)
    thread.start()
    thread.join(30)
    assert "takes more than 0.06 s for 1 message" in errors[0]


@pytest.mark.parametrize(
    "form", ["{{ %s }}", "{%% if %s %%}{%% endif %%}", "{%% autoescape %s %%}{%% endautoescape %%}"]
)
@pytest.mark.parametrize(
    "expression",
    [
        "('a' | center(3000)) | replace(' ', 'b' | center(3000))",
        "'%9999999d' % 1",
        "1 | tojson(indent=9999999)",
    ],
)
def test_compiling_computes_nothing(form: str, expression: str) -> None:
    """There are no limits yet. Jinja would compute filters and operators of constants."""
    tracemalloc.start()
    try:
        ChatTemplate("{% if false %}" + form % expression + "{% endif %}", {})
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_huge_template_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"chat template: too long \(got 200001 characters\); allowed: 200000"
    ):
        ChatTemplate("x" * 200_001, {})
