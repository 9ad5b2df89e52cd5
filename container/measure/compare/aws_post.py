"""`lmi compare --aws-post`: the comparison of dynamic and rolling batching that AWS published, on a small model.

The post ran falcon-40b on 8 GPUs; here its three configurations serve the bundled model. Two configurations are added
to split the gain: transformers with a bigger batch, and a static batch of 4 on the kernels of engine=MPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from container.measure.bench.choice import LoadChoice
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.compare.configurations import BadConfiguration, NamedPath
from container.measure.compare.report import Section
from container.measure.compare.results import Comparison
from container.measure.compare.summary import (
    LATENCY_P90,
    TOKENS_PER_SECOND,
    Measure,
    over_rounds,
    ratio,
    times,
)
from container.measure.numbers import NOTHING, number
from container.measure.output import Table
from lmi_server.properties import loader

DYNAMIC, ROLLING, PAGED = "dynamic-4", "rolling", "rolling-paged"
DYNAMIC_32, STATIC = "dynamic-32", "static-4"
_TWINS = {DYNAMIC: "smollm2-dynamic", ROLLING: "smollm2-rolling", PAGED: "smollm2-rolling-paged"}
_SCENARIOS = ("aws-1", "aws-2")
"""Presets of the post's two scenarios."""
_REQUESTS = 32


@dataclass(frozen=True, slots=True)
class PostFigures:
    """One row of the post, scenario 1 and 2."""

    tokens_per_second: tuple[float, float]
    latency_p90: tuple[float, float]
    """Seconds."""

    def of(self, measure: Measure, scenario: int) -> float:
        return (self.tokens_per_second if measure is TOKENS_PER_SECOND else self.latency_p90)[scenario]


PUBLISHED = {
    DYNAMIC: PostFigures((5.53, 19.96), (58.34, 59.31)),
    ROLLING: PostFigures((56.04, 46.69), (4.74, 3.88)),
    PAGED: PostFigures((59.18, 44.75), (4.76, 2.67)),
}


def scenarios(load: LoadChoice) -> tuple[Scenario, ...]:
    """The post's two scenarios with the number of requests and the arrivals of `load`. Raises BenchError."""
    made = (
        replace(load, preset=preset, requests=load.requests or _REQUESTS).scenario(PRESETS[preset])
        for preset in _SCENARIOS
    )
    return tuple(
        replace(one, name=f"scenario {place}: {one.workload.describe().replace('tokens ', '')}")
        for place, one in enumerate(made, start=1)
    )


def examples_folder(option: Path | None) -> Path:
    """The folder of --examples, or `properties_examples` beside the package. Raises BadConfiguration."""
    folder = option or Path(__file__).resolve().parents[3] / "properties_examples"
    missing = [name for name in _TWINS.values() if not (folder / name / loader.FILE_NAME).is_file()]
    if missing:
        raise BadConfiguration(
            f"{folder} holds no {' and no '.join(f'{name}/{loader.FILE_NAME}' for name in missing)}; they come with the"
            " source, in properties_examples; --examples names that folder"
        )
    return folder


def named_paths(examples: Path, made: Path) -> tuple[NamedPath, ...]:
    """The configurations, the dynamic one first. Writes the files of the two added ones below `made`."""
    static = {"option.batch_scheduler_policy": "static_batch", "option.max_rolling_batch_size": "4"}
    return (
        *(NamedPath(name, examples / folder) for name, folder in _TWINS.items()),
        _derived(DYNAMIC_32, examples / _TWINS[DYNAMIC], made, {"batch_size": "32"}),
        _derived(STATIC, examples / _TWINS[PAGED], made, static),
    )


def _derived(name: str, source: Path, made: Path, changes: Mapping[str, str]) -> NamedPath:
    text = ", ".join(f"{key}={value}" for key, value in changes.items())
    return NamedPath(name, derive(source, made / name, changes), f"{source} with {text}")


def derive(source: Path, target: Path, changes: Mapping[str, str]) -> Path:
    """A copy of the configuration in folder `source` with some keys changed or added; returns `target`."""
    kept = [
        line
        for line in (source / loader.FILE_NAME).read_text(encoding="latin-1").splitlines()
        if re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] not in changes
    ]
    lines = [*kept, *(f"{key}={value}" for key, value in changes.items())]
    target.mkdir(parents=True)
    (target / loader.FILE_NAME).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return target


def sections(comparison: Comparison) -> tuple[Section, ...]:
    """The sections of the report that only this comparison has."""
    return (
        Section(
            "Beside the AWS post",
            "The post measured falcon-40b in fp16 on 8 GPUs; here a model of 135 million parameters ran on the machine"
            " named below. Compare the ratios to the dynamic configuration, not the values.",
            tuple(
                _post_table(comparison, place, measure)
                for place in range(len(_SCENARIOS))
                for measure in (TOKENS_PER_SECOND, LATENCY_P90)
            ),
        ),
        Section(
            "Where the gain comes from",
            f"`{STATIC}` runs static batches of 4, as `{DYNAMIC}` does, on the kernels of engine=MPI. So the second row"
            " is the gain of kernels and engine, and the third row that of batch size and step-level scheduling; their"
            " product is the first row. All prompts of a scenario have the same length, and so have all answers, which"
            " favours static batches. A static batch takes the requests that wait when it starts, so the first one may"
            " be smaller than 4; the tables of each scenario show the mean sizes.",
            tuple(_parts_table(comparison, measure) for measure in (TOKENS_PER_SECOND, LATENCY_P90)),
        ),
    )


def _post_table(comparison: Comparison, place: int, measure: Measure) -> Table:
    scenario = comparison.plan.scenarios[place].name
    unit = "" if measure.unit == "/s" else f", {measure.unit}"
    base = PUBLISHED[DYNAMIC].of(measure, place)
    rows = []
    for name, published in PUBLISHED.items():
        ours = over_rounds(comparison, name, scenario, measure)
        theirs = published.of(measure, place)
        rows.append(
            (
                name,
                number(ours.value) if ours else NOTHING,
                times(ratio(comparison, name, DYNAMIC, scenario, measure)) if name != DYNAMIC else "1",
                f"{theirs:.2f}",
                f"{number(theirs / base)}x" if name != DYNAMIC else "1",
            )
        )
    header = (
        *("configuration", f"here{unit}", f"here, times {DYNAMIC}"),
        *(f"post{unit}", "post, times its dynamic"),
    )
    return Table(f"{scenario}: {measure.title}", header, tuple(rows))


_PARTS = (
    ("the whole gain", PAGED, DYNAMIC),
    ("kernels and engine: the same static batch of 4", STATIC, DYNAMIC),
    ("batch size and step-level scheduling, on the same kernels", PAGED, STATIC),
    ("paged instead of contiguous KV cache", PAGED, ROLLING),
    ("a bigger batch alone, under transformers", DYNAMIC_32, DYNAMIC),
    ("rolling and paged, compared with transformers with a batch of 32", PAGED, DYNAMIC_32),
)
"""(part of the gain, configuration, base)."""


def _parts_table(comparison: Comparison, measure: Measure) -> Table:
    scenarios = [scenario.name for scenario in comparison.plan.scenarios]
    rows = tuple(
        (
            part,
            f"{name} over {base}",
            *(times(ratio(comparison, name, base, scenario, measure)) for scenario in scenarios),
        )
        for part, name, base in _PARTS
    )
    return Table(f"{measure.title}, as ratios", ("part", "ratio of", *scenarios), rows, num_left=2)
