"""lmi compare: at most 6.5 % of 1,000 comparisons of equal configurations are called different.

`lmi compare` measured two equal configurations, and the figures of all rounds were recorded
(`tests/container/measure/compare/aa_rounds.json`; `lmi compare --json` writes such rounds). One record is rolling
batching on a busy machine, whose rounds differ by some 50 %, the other dynamic batching with a long batch delay,
whose rounds differ by a few percent. A simulated comparison draws rounds from one of the two records and decides
by a coin which configuration of each is A. It is wrong if it reports a difference in any of its seven measures. The
records have gaps between tokens, which vary more, in place of the time per output token.

For a true difference the speeds of B are multiplied by 1.05; it is found if B is reported as better in any measure
and worse in none. The share of all runs of consecutive rounds, as they were, is printed beside these shares.
"""

from __future__ import annotations

import statistics

from tests.container.measure.compare.simulated import (
    KINDS,
    comparisons,
    comparisons_until_precise,
    consecutive,
    detected_share,
    recorded_rounds,
    share_different,
)
from tests.verify.lab import Lab, Report, run_alone

_COMPARISONS = 1000
_MAX_ERRORS = 0.065
"""The design is 5 %. The share in 1,000 comparisons varies by about 1.5 %."""
_ROUNDS = (3, 5, 10)
_PRECISIONS = (("rolling", 0.4), ("dynamic", 0.05))


def verify(lab: Lab, report: Report) -> None:
    for kind in KINDS:
        count = len(recorded_rounds(kind))
        report.require(count >= 40, f"{kind}: {count} recorded rounds")
        for num_rounds in _ROUNDS:
            share = share_different(comparisons(kind, num_rounds, _COMPARISONS))
            report.require(share <= _MAX_ERRORS, f"{kind}, {num_rounds} rounds: {share:.1%} called different")
            in_sequence = share_different(consecutive(kind, num_rounds))
            report.figure(f"runs of consecutive rounds: {in_sequence:.1%}")
    for kind, precision in _PRECISIONS:
        results = list(comparisons_until_precise(kind, precision, _COMPARISONS))
        share, mean = share_different(results), statistics.fmean(one.num_rounds for one in results)
        report.require(
            share <= _MAX_ERRORS,
            f"{kind}, interval of {precision:.0%} to each side, {mean:.0f} rounds on average: {share:.1%} different",
        )
    found = [detected_share(comparisons("dynamic", count, _COMPARISONS, speed=1.05)) for count in _ROUNDS]
    shares = ", ".join(f"{share:.1%} at {count}" for share, count in zip(found, _ROUNDS, strict=True))
    report.require(found[0] < found[1] < found[2], f"a true difference of 5 % is found in {shares} rounds")


if __name__ == "__main__":
    run_alone(verify)
