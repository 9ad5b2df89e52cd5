"""lmi compare --aws-post: rolling paged at least 4x (32 in, 128 out) and 1.5x (256 in, 32 out) dynamic(4).

Runs the command as a user would, with its defaults: five rounds of the six configurations, forwards and backwards in
turn. In each round, while a server runs, both scenarios send 32 requests by 32 users at once, after a warm-up. Each
ratio is the geometric mean of the ratios of rounds with the same number.

Besides the three configurations of the post there are three that separate effects: static batches of 4 on the
rolling engine show the effect of the kernels, static and dynamic batches of 32 the effect of a larger batch. The
report is `aws-post.md` in the printed folder.
"""

from __future__ import annotations

from typing import Any

from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

BASE, ROLLING_PAGED = "dynamic-4", "rolling-paged"
CONFIGURATIONS = {BASE, "rolling", ROLLING_PAGED, "dynamic-32", "static-4", "static-32"}
MIN_GAINS = ((4.0, 3.0), (1.5, 1.5))
"""For each scenario, the ratio of tokens/s and the ratio by which the p90 latency is lower."""
GAIN_SECTIONS = ("Comparison with the AWS post", "Where the gain comes from")


def summary_of(data: dict[str, Any], config: str, scenario: str) -> dict[str, Any]:
    (found,) = [
        one for one in data["summary"] if (one["configuration"], one["scenario"]) == (config, scenario)
    ]
    return dict(found)


def figure_line(data: dict[str, Any], config: str, scenario: str) -> str:
    summary = summary_of(data, config, scenario)
    speed, latency = (summary["metrics"][key] for key in ("output_tokens_per_second", "latency_p90"))
    ratio = summary["ratios_to_first"]["output_tokens_per_second"]
    return (
        f"{scenario}: {config}: {speed['value']:.1f} tokens/s ({speed['low']:.1f} to {speed['high']:.1f}), p90"
        f" {latency['value']:.2f} s, {ratio['value']:.2f} times {BASE}'s tokens/s"
    )


def judge(data: dict[str, Any], printed: str, report: Report) -> None:
    """Check the conditions of the check on the command's JSON."""
    names = {config["name"] for config in data["configurations"]}
    scenarios = [scenario["name"] for scenario in data["plan"]["scenarios"]]
    for scenario in scenarios:
        for config in data["configurations"]:
            report.figure(figure_line(data, config["name"], scenario))
    for section in data["sections"]:
        for table in section["tables"] if section["title"] in GAIN_SECTIONS else ():
            for row in table["rows"]:
                report.figure(f"{table['title']}: {' | '.join(row)}")
    for sentence in data["caveats"]:
        report.figure(f"caveat: {sentence}")
    report.require(names == CONFIGURATIONS, f"configs: {', '.join(sorted(names))}")
    report.require(all(name in printed for name in names), "the output names every config")
    failed = sum(one["metrics"]["num_errors"] for one in data["rounds"])
    report.require(failed == 0, f"{failed} requests failed")
    for scenario, (min_speed, min_latency) in zip(scenarios, MIN_GAINS, strict=True):
        ratios = summary_of(data, ROLLING_PAGED, scenario)["ratios_to_first"]
        speed = ratios["output_tokens_per_second"]["value"]
        latency = 1 / ratios["latency_p90"]["value"]
        report.require(
            speed >= min_speed, f"{scenario}: {speed:.2f} times the tokens/s, at least {min_speed:g}"
        )
        report.require(
            latency >= min_latency,
            f"{scenario}: p90 latency {latency:.2f} times lower, at least {min_latency:g}",
        )


def verify(lab: Lab, report: Report) -> None:
    folder = lab.folder / "aws-post"
    data = run_lmi(folder, "compare", "--aws-post", "--output", "aws-post.md")
    judge(data, (folder / "stdout").read_text(), report)


if __name__ == "__main__":
    run_alone(verify)
