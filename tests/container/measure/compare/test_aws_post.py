"""`--aws-post`: scenarios, configurations, and the comparison with the post's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.measure.bench.choice import LoadChoice
from container.measure.compare import aws_post
from container.measure.compare.aws_post import DYNAMIC, DYNAMIC_32, PAGED, ROLLING, STATIC_4, STATIC_32
from container.measure.compare.configurations import BadConfiguration
from container.measure.compare.results import Comparison
from lmi_server.properties import loader
from tests.container.measure.compare.made_up import (
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
)
from tests.support.paths import REPO_ROOT

ONE, TWO = aws_post.scenarios(LoadChoice())
SPEEDS = {
    DYNAMIC: (10.0, 20.0),
    ROLLING: (70.0, 40.0),
    PAGED: (80.0, 50.0),
    DYNAMIC_32: (40.0, 25.0),
    STATIC_4: (16.0, 30.0),
    STATIC_32: (50.0, 40.0),
}
"""Output tokens/s in scenarios 1 and 2, the same in all rounds."""


def made_up(*names: str) -> Comparison:
    rounds = [
        make_round(name, number, make_figures(speed, 100 / speed), scenario=scenario.name)
        for name in names
        for number in (1, 2, 3)
        for scenario, speed in zip((ONE, TWO), SPEEDS[name], strict=True)
    ]
    return make_comparison([make_configuration(name) for name in names], rounds, (ONE, TWO))


def test_the_configurations_are_the_examples_and_those_derived_from_them(tmp_path: Path) -> None:
    named = aws_post.named_paths(aws_post.examples_folder(None), tmp_path)
    assert [one.name for one in named] == [DYNAMIC, ROLLING, PAGED, DYNAMIC_32, STATIC_4, STATIC_32]
    assert [one.origin.rpartition("/")[2] for one in named[3:]] == [
        "smollm2-dynamic with batch_size=32",
        "smollm2-rolling with option.batch_scheduler_policy=static_batch, option.max_rolling_batch_size=4",
        "smollm2-rolling with option.batch_scheduler_policy=static_batch",
    ]
    configs = {one.name: loader.load(one.path, {}).config for one in named}
    assert [config.engine for config in configs.values()] == ["Python", "MPI", "MPI", "Python", "MPI", "MPI"]
    sizes = (configs[DYNAMIC].options.batch_size, configs[DYNAMIC_32].options.batch_size)
    assert sizes == (4, 32)
    assert configs[DYNAMIC_32].options.max_batch_delay == configs[DYNAMIC].options.max_batch_delay == 100
    assert [name for name in configs if configs[name].options.paged_attention] == [DYNAMIC, PAGED, DYNAMIC_32]
    for name, size in ((STATIC_4, 4), (STATIC_32, 32)):
        static = configs[name].options
        assert (static.batch_scheduler_policy, static.max_rolling_batch_size) == ("static_batch", size)
    assert configs[PAGED].options.max_rolling_batch_size == 32


def test_the_examples_folder_must_have_the_examples(tmp_path: Path) -> None:
    assert aws_post.examples_folder(REPO_ROOT / "properties_examples") == REPO_ROOT / "properties_examples"
    missing = r"smollm2-dynamic/serving\.properties and no smollm2-rolling/"
    with pytest.raises(BadConfiguration, match=missing):
        aws_post.examples_folder(tmp_path)


def test_the_tables_show_measured_figures_next_to_the_posts() -> None:
    post = aws_post.section(made_up(*SPEEDS))
    speed_one, latency_one, speed_two, latency_two = post.tables
    assert speed_one.rows == (
        (DYNAMIC, "10.0", "1", "5.53", "1", "-"),
        (ROLLING, "70.0", "7.00x (7.00 to 7.00)", "56.04", "10.1x", "-"),
        (PAGED, "80.0", "8.00x (8.00 to 8.00)", "59.18", "10.7x", "2.00x (2.00 to 2.00)"),
    )
    assert latency_one.rows[1][:5] == (ROLLING, "1.43", "0.143x (0.143 to 0.143)", "4.74", "0.0812x")
    assert [cells[3] for cells in speed_two.rows] == ["19.96", "46.69", "44.75"]
    assert [cells[3] for cells in latency_two.rows] == ["59.31", "3.88", "2.67"]
    assert "falcon-40b" in post.text
    assert "8 GPUs" in post.text
