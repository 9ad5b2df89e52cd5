"""`lmi compare --aws-post`: the published comparison of dynamic and rolling batching, on a small model.

The post ran falcon-40b on 8 GPUs; here its three configurations serve the bundled model. Two configurations are added
to split the gain: transformers with a bigger batch, and a static batch of 4 on the rolling engine's kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.measure.compare.configurations import Named
from container.measure.compare.numbers import NOTHING, number, times
from container.measure.compare.plan import Scenario
from container.measure.compare.report import Section
from container.measure.compare.results import Comparison
from container.measure.compare.summary import LATENCY_P90, TOKENS_PER_SECOND, Measure, over_rounds, ratio
from container.measure.compare.tables import Table
from lmi_server.properties import loader
from lmi_server.properties.problems import PropertiesError

DYNAMIC, ROLLING, PAGED = "dynamic-4", "rolling", "rolling-paged"
DYNAMIC_32, STATIC = "dynamic-32", "static-4"
_TWINS = {DYNAMIC: "smollm2-dynamic", ROLLING: "smollm2-rolling", PAGED: "smollm2-rolling-paged"}
_SHAPES = ((32, 128), (256, 32))
"""Tokens in and out of the post's two scenarios."""


class NoExamples(Exception):
    """The example configurations are not there. The text is a sentence."""


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the post, scenario 1 and 2."""

    tokens_per_second: tuple[float, float]
    latency_p90: tuple[float, float]
    """Seconds."""


PUBLISHED = {
    DYNAMIC: Published((5.53, 19.96), (58.34, 59.31)),
    ROLLING: Published((56.04, 46.69), (4.74, 3.88)),
    PAGED: Published((59.18, 44.75), (4.76, 2.67)),
}


def scenarios(num_requests: int, num_users: int) -> tuple[Scenario, Scenario]:
    """The post's two shapes of requests."""
    one, two = (
        Scenario(
            f"scenario {place}: {tokens_in} in, {tokens_out} out",
            tokens_in,
            tokens_out,
            num_requests,
            num_users,
        )
        for place, (tokens_in, tokens_out) in enumerate(_SHAPES, start=1)
    )
    return one, two


def examples_folder(given: Path | None) -> Path:
    """`given`, or `properties_examples` beside the package. Raises `NoExamples`."""
    folder = given or Path(__file__).resolve().parents[3] / "properties_examples"
    missing = [name for name in _TWINS.values() if not (folder / name / loader.FILE_NAME).is_file()]
    if missing:
        raise NoExamples(
            f"{folder} holds no {' and no '.join(f'{name}/{loader.FILE_NAME}' for name in missing)}; they come with the"
            " source, in properties_examples; --examples names that folder"
        )
    return folder


def named_arms(examples: Path, made: Path, environ: Mapping[str, str]) -> tuple[Named, ...]:
    """The configurations, the dynamic one first. Writes the files of the added ones below `made`.

    The static one is left out where the rolling engine does not know static batches.
    """
    twins = [Named(name, examples / folder) for name, folder in _TWINS.items()]
    bigger = _derived(DYNAMIC_32, examples, DYNAMIC, made, {"batch_size": "32"})
    changes = {"option.batch_scheduler_policy": "static_batch", "option.max_rolling_batch_size": "4"}
    static = _derived(STATIC, examples, PAGED, made, changes)
    try:
        loader.load(static.path, environ)
    except PropertiesError:
        return (*twins, bigger)
    return (*twins, bigger, static)


def _derived(name: str, examples: Path, twin: str, made: Path, changes: Mapping[str, str]) -> Named:
    said = ", ".join(f"{key}={value}" for key, value in changes.items())
    source = examples / _TWINS[twin]
    return Named(name, derive(source, made / name, changes), f"{source} with {said}")


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
    """The parts of the report that only this comparison has."""
    return (_beside_the_post(comparison), _decomposition(comparison))


def _beside_the_post(comparison: Comparison) -> Section:
    made = [
        _post_table(comparison, place, measure)
        for place in range(len(_SHAPES))
        for measure in (TOKENS_PER_SECOND, LATENCY_P90)
    ]
    text = (
        "The post measured falcon-40b in fp16 on 8 GPUs; here a model of 135 million parameters ran on the machine"
        " named below. Compare the ratios to the dynamic configuration, not the values."
    )
    return Section("Beside the AWS post", text, tuple(made))


def _post_table(comparison: Comparison, place: int, measure: Measure) -> Table:
    scenario = comparison.plan.scenarios[place].name
    unit = "" if measure.unit == "/s" else f", {measure.unit}"
    base = _published(DYNAMIC, measure, place)
    rows = []
    for name in PUBLISHED:
        ours = over_rounds(comparison, name, scenario, measure)
        theirs = _published(name, measure, place)
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
        "configuration",
        f"here{unit}",
        f"here, times {DYNAMIC}",
        f"post{unit}",
        "post, times its dynamic",
    )
    return Table(f"{scenario}: {measure.title}", header, tuple(rows))


def _published(name: str, measure: Measure, place: int) -> float:
    row = PUBLISHED[name]
    return (row.tokens_per_second if measure is TOKENS_PER_SECOND else row.latency_p90)[place]


_PARTS = (
    ("the whole gain", PAGED, DYNAMIC),
    ("kernels and engine: the same static batch of 4", STATIC, DYNAMIC),
    ("batch size and step-level scheduling, on the same kernels", PAGED, STATIC),
    ("pages in place of one piece for each sequence", PAGED, ROLLING),
    ("a bigger batch alone, under transformers", DYNAMIC_32, DYNAMIC),
    ("rolling and paged beside transformers with a batch of 32", PAGED, DYNAMIC_32),
)
"""(what, configuration, base)."""


def _decomposition(comparison: Comparison) -> Section:
    names = {arm.name for arm in comparison.arms}
    parts = [part for part in _PARTS if {part[1], part[2]} <= names]
    made = [_parts_table(comparison, parts, measure) for measure in (TOKENS_PER_SECOND, LATENCY_P90)]
    if STATIC in names:
        text = (
            f"`{STATIC}` runs static batches of 4, as `{DYNAMIC}` does, on the rolling engine's kernels. So the second"
            " row is the gain of kernels and engine, the third that of batch size and step-level scheduling; their"
            " product is the first row. All prompts of a scenario have the same length, and so have all answers, which"
            " favours static batches. A static batch takes the requests that wait when it begins, so the first one may"
            " be smaller than 4; the tables of each scenario have the mean sizes."
        )
    else:
        text = (
            "The rolling engine of this version has no static batches, so the gain of its kernels cannot be told apart"
            " from that of its scheduling."
        )
    return Section("Where the gain comes from", text, tuple(made))


def _parts_table(comparison: Comparison, parts: Sequence[tuple[str, str, str]], measure: Measure) -> Table:
    rows = [
        (
            what,
            f"{name} over {base}",
            *(times(ratio(comparison, name, base, one.name, measure)) for one in comparison.plan.scenarios),
        )
        for what, name, base in parts
    ]
    header = ("part", "ratio of", *(scenario.name for scenario in comparison.plan.scenarios))
    return Table(f"{measure.title}, as ratios", header, tuple(rows), num_left=2)
