"""`lmi compare --aws-post`: repeat AWS's published comparison of dynamic and rolling batching on a small model.

The post ran falcon-40b on 8 GPUs; here its three configurations serve the bundled model. Three configurations are added
to divide the gain (`attribution.py`): transformers with the batch size of the rolling configurations, and static
batches of two sizes on the kernels of engine=MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from container.measure.bench.choice import LoadChoice
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.compare import attribution
from container.measure.compare.configurations import BadConfiguration, NamedPath
from container.measure.compare.derive import derive
from container.measure.compare.plan import Part
from container.measure.compare.results import Comparison
from container.measure.compare.summary import (
    LATENCY_P90,
    TOKENS_PER_SECOND,
    Measure,
    over_rounds,
    ratio,
    times,
)
from container.measure.numbers import NO_VALUE, format_number
from container.measure.output import Table
from container.measure.sections import Section
from lmi_server.properties import loader

DYNAMIC, ROLLING, PAGED = "dynamic-4", "rolling", "rolling-paged"
DYNAMIC_32, STATIC_4, STATIC_32 = "dynamic-32", "static-4", "static-32"
_TWINS = {DYNAMIC: "smollm2-dynamic", ROLLING: "smollm2-rolling", PAGED: "smollm2-rolling-paged"}
_SCENARIOS = ("aws-1", "aws-2")
"""Presets of the post's two scenarios."""
_REQUESTS = 32
PUBLISHED: Mapping[str, Mapping[Measure, tuple[float, float]]] = {
    DYNAMIC: {TOKENS_PER_SECOND: (5.53, 19.96), LATENCY_P90: (58.34, 59.31)},
    ROLLING: {TOKENS_PER_SECOND: (56.04, 46.69), LATENCY_P90: (4.74, 3.88)},
    PAGED: {TOKENS_PER_SECOND: (59.18, 44.75), LATENCY_P90: (4.76, 2.67)},
}
"""Figures of scenarios 1 and 2 in the post; latencies are in seconds."""


def scenarios(load: LoadChoice) -> tuple[Scenario, ...]:
    """Return the post's two scenarios with the number of requests and the arrivals of `load`. Raises BenchError."""
    made = (
        replace(load, preset=preset, requests=load.requests or _REQUESTS).scenario(PRESETS[preset])
        for preset in _SCENARIOS
    )
    return tuple(
        replace(one, name=f"scenario {place}: {one.workload.describe().replace('tokens ', '')}")
        for place, one in enumerate(made, start=1)
    )


def examples_folder(option: Path | None) -> Path:
    """Return the folder given by --examples, or `properties_examples` beside the package. Raises BadConfiguration."""
    folder = option or Path(__file__).resolve().parents[3] / "properties_examples"
    missing = [name for name in _TWINS.values() if not (folder / name / loader.FILE_NAME).is_file()]
    if missing:
        raise BadConfiguration(
            f"--examples: {folder} has no {' and no '.join(f'{name}/{loader.FILE_NAME}' for name in missing)}; allowed:"
            " the folder properties_examples of the source"
        )
    return folder


def named_paths(examples: Path, work_folder: Path) -> tuple[NamedPath, ...]:
    """Return the configurations, the dynamic one first. Writes the three added ones below `work_folder`."""
    dynamic, rolling = (examples / _TWINS[name] for name in (DYNAMIC, ROLLING))
    small = {**attribution.STATIC, "option.max_rolling_batch_size": "4"}
    return (
        *(NamedPath(name, examples / folder) for name, folder in _TWINS.items()),
        derive(DYNAMIC_32, dynamic, work_folder, {"batch_size": "32"}),
        derive(STATIC_4, rolling, work_folder, small),
        derive(STATIC_32, rolling, work_folder, attribution.STATIC),
    )


PARTS = (
    Part(attribution.PAGING, PAGED, ROLLING),
    Part(attribution.SCHEDULING, ROLLING, STATIC_32),
    Part(attribution.BATCH_SIZE, STATIC_32, STATIC_4),
    Part(attribution.KERNELS, STATIC_4, DYNAMIC),
)
FURTHER_PAIRS = ((PAGED, DYNAMIC_32),)


def section(comparison: Comparison) -> Section:
    """Return the section with the post's figures beside the measured ones."""
    return Section(
        "Comparison with the AWS post",
        "The post measured falcon-40b in fp16 on 8 GPUs; this run used a model of 135 million parameters on the machine"
        " named below. Compare the ratios to the dynamic configuration, not the values. The post compares a dynamic"
        f" batch of 4 with rolling batches of 32; the last column compares with `{DYNAMIC_32}`, which has the same"
        " batch size.",
        tuple(
            _post_table(comparison, place, measure)
            for place in range(len(_SCENARIOS))
            for measure in (TOKENS_PER_SECOND, LATENCY_P90)
        ),
    )


def _post_table(comparison: Comparison, place: int, measure: Measure) -> Table:
    scenario = comparison.plan.scenarios[place].name
    unit = "" if measure.unit == "/s" else f", {measure.unit}"
    base = PUBLISHED[DYNAMIC][measure][place]
    rows = []
    for name, published in PUBLISHED.items():
        ours = over_rounds(comparison, name, scenario, measure)
        theirs = published[measure][place]
        equal_batch = ratio(comparison, name, DYNAMIC_32, scenario, measure) if name == PAGED else None
        rows.append(
            (
                name,
                format_number(ours.value) if ours else NO_VALUE,
                times(ratio(comparison, name, DYNAMIC, scenario, measure)) if name != DYNAMIC else "1",
                f"{theirs:.2f}",
                f"{format_number(theirs / base)}x" if name != DYNAMIC else "1",
                times(equal_batch),
            )
        )
    header = (
        *("configuration", f"here{unit}", f"here, times {DYNAMIC}"),
        *(f"post{unit}", "post, times its dynamic", f"here, times {DYNAMIC_32}"),
    )
    return Table(f"{scenario}: {measure.title}", header, tuple(rows))
