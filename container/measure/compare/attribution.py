"""`lmi compare --attribute`: divide the gain of rolling over dynamic batching into its causes.

Configurations are added between the two, each of which differs from its neighbor in one thing only. engine=Python runs
transformers' modules and cannot use the kernels of engine=MPI. Its static batches are therefore emulated by engine=MPI
with `batch_scheduler_policy=static_batch`, which runs the waiting requests as one batch to its end. From there on,
kernels, HTTP server and client are the same, and only the batching changes. In each round all configurations get the
same requests, so the product of the parts' mean ratios is the ratio of the whole; nearly, where means are trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from container.measure.compare.configurations import BadConfiguration, Configuration, NamedPath
from container.measure.compare.derive import derive
from container.measure.compare.plan import Part
from container.measure.compare.results import Comparison
from container.measure.compare.summary import LATENCY_P90, MEASURES, TOKENS_PER_SECOND, Measure, ratio, times
from container.measure.compare.verdict import finding_kind
from container.measure.output import Table
from container.measure.sections import Finding, Section

PAGING = "paged instead of contiguous KV cache"
SCHEDULING = "step-level scheduling instead of static batches"
BATCH_SIZE = "a bigger batch"
KERNELS = "kernels and engine instead of transformers"

CONTIGUOUS = {"option.paged_attention": "false", "option.enable_prefix_caching": "false"}
STATIC = {"option.batch_scheduler_policy": "static_batch"}
_SIZE = "option.max_rolling_batch_size"
_POLICY = "option.batch_scheduler_policy"


def attribute_gain(
    configs: Sequence[Configuration], work_folder: Path
) -> tuple[tuple[NamedPath, ...], tuple[Part, ...]]:
    """Derive the configurations between a dynamic and a rolling one, with files below `work_folder`, and the parts.

    Raises BadConfiguration unless `configs` are one dynamic and one rolling configuration.
    """
    if sorted(config.engine for config in configs) != ["MPI", "Python"] or any(one.url for one in configs):
        engines = ", ".join(f"{one.name}: {one.url or f'engine={one.engine}'}" for one in configs)
        raise BadConfiguration(
            f"--attribute: needs two files, one with engine=Python and one with engine=MPI (got {engines})"
        )
    dynamic, rolling = sorted(configs, key=lambda config: config.engine, reverse=True)
    if rolling.path is None:
        raise ValueError(f"{rolling.name} is not a configuration file")
    names, values, size = (dynamic.name, rolling.name), rolling.values, str(dynamic.batch_limit)
    contiguous, changes = dict(CONTIGUOUS), dict[str, str]()
    if values.get(_POLICY) == "max_utilization":  # requires a paged KV cache
        contiguous[_POLICY] = "guaranteed_no_evict"
    stages = (
        (PAGING, "contiguous", values.get("option.paged_attention") == "true", contiguous),
        (SCHEDULING, f"static-{rolling.batch_limit}", values.get(_POLICY) != STATIC[_POLICY], STATIC),
        (BATCH_SIZE, f"static-{size}", values.get(_SIZE) != size, {_SIZE: size}),
    )
    added: list[NamedPath] = []
    parts: list[Part] = []
    last = rolling.name
    for cause, suffix, is_missing, change in stages:
        if is_missing:
            changes |= change
            name = suffix if suffix not in names else f"{rolling.name} {suffix}"
            added.append(derive(name, rolling.path, work_folder, changes))
            parts.append(Part(cause, last, name))
            last = name
    return tuple(added), (*parts, Part(KERNELS, last, dynamic.name))


def _sums(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the whole gain, and the gain on the same kernels; empty without parts."""
    if not parts:
        return ()
    whole = Part("the whole gain", parts[0].name, parts[-1].base)
    batching = Part("all except kernels and engine, with the same kernels", parts[0].name, parts[-1].name)
    return (whole, batching) if len(parts) > 2 else (whole,)


def further_pairs(parts: Sequence[Part]) -> tuple[tuple[str, str], ...]:
    """Return (name, base) of the ratios to show besides those of the parts."""
    return tuple((part.name, part.base) for part in _sums(parts))


def sections(comparison: Comparison) -> tuple[Section, ...]:
    """Return the section on the causes of the gain, if the plan has parts."""
    parts = comparison.plan.parts
    if not parts:
        return ()
    section = Section(
        "Where the gain comes from",
        "Each part is the ratio of two configurations that differ in only one respect. The product of the parts is the"
        f" whole gain, with ten rounds or more nearly. `{parts[-1].name}` runs static batches, as `{parts[-1].base}`"
        " does, but with the kernels of"
        " engine=MPI: engine=Python runs transformers and cannot use these kernels. All other parts are measured with"
        " the same kernels. The shares depend on the order of the steps. A static batch takes the requests that are"
        " waiting when it starts, so the first batch may be smaller than the limit; the tables of each scenario show"
        " the mean sizes. If all requests have the same length, static batches waste nothing, and step-level scheduling"
        " gains little.",
        tuple(_table(comparison, measure) for measure in (TOKENS_PER_SECOND, LATENCY_P90)),
    )
    return (section,)


def _table(comparison: Comparison, measure: Measure) -> Table:
    scenarios = [scenario.name for scenario in comparison.plan.scenarios]
    rows = tuple(
        (
            part.cause,
            f"{part.name} over {part.base}",
            *(times(ratio(comparison, part.name, part.base, scenario, measure)) for scenario in scenarios),
        )
        for part in (*_sums(comparison.plan.parts), *comparison.plan.parts)
    )
    return Table(f"{measure.title}, as ratios", ("part", "ratio of", *scenarios), rows, num_left=2)


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """Describe in words, by scenario, how the throughput gain divides into its causes."""
    parts = comparison.plan.parts
    found = []
    for scenario in comparison.plan.scenarios if parts else ():
        whole, *factors = (
            ratio(comparison, part.name, part.base, scenario.name, TOKENS_PER_SECOND)
            for part in (_sums(parts)[0], *parts)
        )
        causes = ", ".join(
            f"{times(factor)} {part.cause}" for factor, part in zip(factors, parts, strict=True)
        )
        sentence = f"{parts[0].name} has {times(whole)} the figure of {parts[-1].base}, about the product of {causes}."
        subject = f"{scenario.name}, {TOKENS_PER_SECOND.title}"
        found.append(Finding(subject, sentence, finding_kind(whole)))
    return tuple(found)


def json_values(comparison: Comparison) -> list[dict[str, Any]]:
    """Return each part for each scenario and measure. Sums of parts are marked by `is_sum`."""
    sums = _sums(comparison.plan.parts)
    return [
        {
            "scenario": scenario.name,
            "measure": measure.key,
            "cause": part.cause,
            "configuration": part.name,
            "base": part.base,
            "is_sum": part in sums,
            "ratio": ratio(comparison, part.name, part.base, scenario.name, measure),
        }
        for scenario in comparison.plan.scenarios
        for measure in MEASURES
        for part in (*sums, *comparison.plan.parts)
    ]
