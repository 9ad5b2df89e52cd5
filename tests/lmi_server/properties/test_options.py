"""The option table is complete, consistent, and equal to the reference page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engines.wire import MAX_MESSAGE_BYTES
from lmi_server.config import LmiConfig
from lmi_server.properties.option import Option, Status
from lmi_server.properties.options import OPTIONS, by_name
from lmi_server.properties.reference import listed, markdown, shown_default
from lmi_server.values.base import is_one_of
from lmi_server.values.scalars import Choice, Int
from tests.lmi_server.properties.loading import load_text, single_problem

ROOT = Path(__file__).parents[3]


def fields_of_config() -> set[str]:
    found = {"engine"}
    for part in ("source", "options", "server"):
        found |= {f"{part}.{field.name}" for field in dataclasses.fields(getattr(LmiConfig(), part))}
    return found - {"source.model_dir", "source.fetch_all_files"}


def test_every_field_of_the_configuration_has_exactly_one_option() -> None:
    targets = [option.target for option in OPTIONS if option.target]
    assert sorted(targets) == sorted(fields_of_config())


def test_option_names_are_unique() -> None:
    assert len(by_name()) == sum(1 + len(option.aliases) for option in OPTIONS)


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.example], ids=lambda option: option.name
)
def test_every_example_is_valid_and_reaches_its_field(option: Option, tmp_path: Path) -> None:
    for name in (option.name, *option.aliases):
        engine = "" if option.name == "engine" or option.engine == "any" else f"engine={option.engine}\n"
        loaded = load_text(tmp_path, f"{engine}{name}={option.example}\n")
        if option.target:
            part, _, field = option.target.rpartition(".")
            owner = getattr(loaded.config, part) if part else loaded.config
            assert getattr(owner, field) == option.type.from_text(option.example)
        value = next(value for value in loaded.values if value.key == option.name)
        assert value.source.startswith(str(tmp_path / "serving.properties"))


def test_every_supported_option_has_an_example() -> None:
    assert [option.name for option in OPTIONS if option.status is Status.WORKS and not option.example] == []


def test_unsupported_options_have_a_reason_and_valid_neutral_values() -> None:
    for option in OPTIONS:
        if option.status is not Status.WORKS:
            assert option.reason, option.name
            assert not option.target, option.name
        for value in option.neutral:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            assert is_one_of(option.type.from_text(text), option.neutral), option.name


def test_defaults_come_from_the_configuration_classes() -> None:
    assert by_name()["option.max_rolling_batch_size"].default == LmiConfig().options.max_rolling_batch_size
    assert by_name()["max_request_size"].default == LmiConfig().server.max_request_size


def test_a_message_to_an_engine_has_room_for_the_largest_body_and_its_headers() -> None:
    largest_body = by_name()["max_request_size"].type
    assert isinstance(largest_body, Int)
    assert largest_body.maximum is not None
    assert largest_body.maximum + (8 << 20) <= MAX_MESSAGE_BYTES


def test_the_default_of_rolling_batch_names_the_keys_that_decide() -> None:
    default = shown_default(by_name()["option.rolling_batch"])
    assert "engine=Python" in default
    assert "batch_size" in default


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("option.block_size", "16"),
        ("option.enable_prefix_caching", "true with paged attention, else false"),
    ],
)
def test_a_default_that_is_always_the_same_is_shown(name: str, default: str) -> None:
    assert shown_default(by_name()[name]) == default
    assert "default" not in by_name()[name].help.lower()


@pytest.mark.parametrize(("name", "unsupported"), [("options.md", False), ("unsupported-options.md", True)])
def test_the_reference_pages_are_up_to_date(name: str, unsupported: bool) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == markdown(unsupported), "run: make docs"


def test_groups_of_options_hold_only_supported_or_only_unsupported_ones() -> None:
    supported, unsupported = ({option.group for option in listed(flag)} for flag in (False, True))
    assert "" not in supported
    assert supported & unsupported == set()


def test_every_option_says_what_it_accepts_and_does() -> None:
    assert all(option.type.accepted and option.help for option in OPTIONS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "option.quantize=awq",
            "is not supported: use the unquantized model; option.quantize=int8 quantizes it on a CPU; accepted: none or"
            " int8",
        ),
        (
            "engine=vllm",
            "is not supported: a value of option.rolling_batch; use engine=MPI; accepted: MPI, Python or",
        ),
        ("engine=lmi-dist", "a value of option.rolling_batch; use engine=MPI"),
        ("option.enable_sleep_mode=true", "known to LMI but not supported: not implemented"),
        ("option.chat_template=chatml", "put a chat_template.jinja into the model's folder"),
    ],
    ids=["quantize", "vllm", "lmi-dist", "sleep mode", "chat template"],
)
def test_unsupported_values_are_refused_with_what_to_use_instead(
    line: str, message: str, tmp_path: Path
) -> None:
    assert message in str(single_problem(tmp_path, f"{line}\n"))


def test_no_reason_only_repeats_that_something_is_not_supported() -> None:
    reasons = {option.name: option.reason for option in OPTIONS}
    for option in OPTIONS:
        if isinstance(option.type, Choice):
            reasons |= option.type.refused
    assert [name for name, reason in reasons.items() if reason.startswith("not supported")] == []
