"""`--attribute`: the configurations that are added, and the parts of the gain."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from container.measure.compare import attribution
from container.measure.compare.configurations import BadConfiguration, Configuration
from container.measure.compare.plan import Part, Plan
from container.measure.compare.results import Comparison
from lmi_server.properties import loader
from tests.container.measure.compare.made_up import (
    SCENARIO,
    compare_speeds,
    make_configuration,
    write_properties,
)

PARTS = (
    Part(attribution.PAGING, "paged", "contiguous"),
    Part(attribution.SCHEDULING, "contiguous", "static-32"),
    Part(attribution.BATCH_SIZE, "static-32", "static-4"),
    Part(attribution.KERNELS, "static-4", "dynamic"),
)
SPEEDS = {
    "dynamic": (10.0, 11.0, 9.0),
    "paged": (80.0, 78.0, 82.0),
    "contiguous": (64.0, 70.0, 61.0),
    "static-32": (32.0, 33.0, 31.5),
    "static-4": (16.0, 15.0, 17.0),
}


def compared() -> Comparison:
    plan = Plan((SCENARIO,), 3, seed=0, parts=PARTS, further_pairs=attribution.further_pairs(PARTS))
    return dataclasses.replace(compare_speeds(SPEEDS), plan=plan)


def rolling(tmp_path: Path, *lines: str, **values: str) -> Configuration:
    folder = write_properties(tmp_path / "rolling", "engine=MPI", "option.model_id=org/m", *lines)
    effective = {"max_rolling_batch_size": "32", "paged_attention": "true"}
    effective |= {"batch_scheduler_policy": "max_utilization", **values}
    return dataclasses.replace(make_configuration("rolling", **effective), path=folder)


def dynamic(batch_size: str = "4") -> Configuration:
    config = make_configuration("dynamic", engine="Python")
    return dataclasses.replace(config, values={**config.values, "batch_size": batch_size})


def test_added_configurations_differ_in_one_change_each(tmp_path: Path, copies: Path) -> None:
    lines = ("option.enable_prefix_caching=true", "option.batch_scheduler_policy=max_utilization")
    configs = (dynamic(), rolling(tmp_path, *lines))
    added, parts = attribution.attribute_gain(configs, copies)
    assert [(part.cause, part.name, part.base) for part in parts] == [
        (attribution.PAGING, "rolling", "contiguous"),
        (attribution.SCHEDULING, "contiguous", "static-32"),
        (attribution.BATCH_SIZE, "static-32", "static-4"),
        (attribution.KERNELS, "static-4", "dynamic"),
    ]
    options = [loader.load(one.path, {}).config.options for one in added]
    assert [(one.paged_attention, one.enable_prefix_caching) for one in options] == [(False, False)] * 3
    assert [(one.batch_scheduler_policy, one.max_rolling_batch_size) for one in options] == [
        ("guaranteed_no_evict", 32),
        ("static_batch", 32),
        ("static_batch", 4),
    ]
    assert attribution.attribute_gain(configs[::-1], copies)[1] == parts, "in either order"


def test_options_that_both_have_are_not_a_part(tmp_path: Path, copies: Path) -> None:
    contiguous = rolling(tmp_path, paged_attention="false", batch_scheduler_policy="static_batch")
    added, parts = attribution.attribute_gain((dynamic("32"), contiguous), copies)
    assert added == ()
    assert parts == (Part(attribution.KERNELS, "rolling", "dynamic"),)


def test_an_added_configuration_gets_an_unused_name(tmp_path: Path, copies: Path) -> None:
    named = dataclasses.replace(dynamic(), name="static-32")
    added, _ = attribution.attribute_gain((named, rolling(tmp_path)), copies)
    assert [one.name for one in added] == ["contiguous", "rolling static-32", "static-4"]


def test_two_configurations_of_one_engine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"--attribute: needs two files.*engine=MPI.*engine=MPI"):
        attribution.attribute_gain((make_configuration("a"), make_configuration("b")), tmp_path)
    running = dataclasses.replace(make_configuration("b"), url="http://127.0.0.1:1")
    with pytest.raises(BadConfiguration, match=r"b: http://127\.0\.0\.1:1"):
        attribution.attribute_gain((dynamic(), running), tmp_path)


def test_the_product_of_the_parts_is_the_whole_gain() -> None:
    found = [
        one for one in attribution.json_values(compared()) if one["measure"] == "output_tokens_per_second"
    ]
    whole, same_kernels = (one["ratio"].value for one in found if one["is_sum"])
    parts = {one["cause"]: one["ratio"].value for one in found if not one["is_sum"]}
    assert math.prod(parts.values()) == pytest.approx(whole)
    assert same_kernels * parts[attribution.KERNELS] == pytest.approx(whole)
    assert parts[attribution.SCHEDULING] == pytest.approx((64 * 70 * 61 / 32 / 33 / 31.5) ** (1 / 3))


def test_the_report_lists_the_parts_in_a_table_and_a_sentence() -> None:
    comparison = compared()
    (section,) = attribution.sections(comparison)
    speed, latency = section.tables
    assert [row[1] for row in speed.rows] == [
        "paged over dynamic",
        "paged over static-4",
        "paged over contiguous",
        "contiguous over static-32",
        "static-32 over static-4",
        "static-4 over dynamic",
    ]
    assert speed.rows[0][2].startswith("8.03x (")
    assert latency.rows[0][2].startswith("0.125x (")
    (finding,) = attribution.findings(comparison)
    assert "paged has 8.0" in finding.sentence
    assert finding.kind == "open", "three rounds vary too much"
    assert all(part.cause in finding.sentence for part in PARTS)
    without_parts = dataclasses.replace(comparison, plan=Plan((SCENARIO,), 3, seed=0))
    assert attribution.findings(without_parts) == attribution.sections(without_parts) == ()
