"""Fit the share that steps have of the GPU-hours of published pre-trainings to benchmarks/truth/gpu-hours.csv.

python benchmarks/fit_campaign.py            report errors, plain and with each source left out
python benchmarks/fit_campaign.py --write    write the value, and the errors of left-out sources
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

import fitting
from flopwise.backtests.gpu_hours import CAMPAIGN, PROJECT, campaign_frac, predict_row
from flopwise.backtests.prediction import Row
from flopwise.facts.catalog import Facts
from flopwise.fitting.deployment import even_weights
from flopwise.fitting.robust import Array, Constant, error_text, weighted_quantile
from flopwise.values import dataclass

SHARE = Constant(CAMPAIGN, ("any",), 0.7, 0.1, 1.0)


@dataclass(frozen=True)
class Campaigns:
    """Hours of the steps over published hours, of every row that can be predicted."""

    ids: tuple[str, ...]
    sources: tuple[str, ...]
    shares: Array

    @property
    def share(self) -> float:
        """The weighted median; a row weighs one over the square root of its source's rows."""
        return _median(self.shares, self.sources)

    def errors(self) -> Array:
        """log(predicted / published) of every row."""
        return np.log(self.shares / self.share)

    def left_out(self) -> Array:
        """log(predicted / published) of every row, with the share that the other sources give."""
        unseen = np.empty(len(self.shares))
        for index, source in enumerate(self.sources):
            others = [i for i, s in enumerate(self.sources) if s != source]
            unseen[index] = np.log(self.shares[index] / _median(self.shares[others], [self.sources[i] for i in others]))
        return unseen


def campaigns(rows: Iterable[Row], facts: Facts) -> Campaigns:
    """The rows that can be predicted and whose hours are those of a whole project."""
    whole = (row for row in rows if (row.get("covers") or PROJECT) == PROJECT)
    usable = [(row, p) for row in whole if (p := predict_row(row, facts)).predicted and p.measured]
    share = campaign_frac(facts.calibration)
    return Campaigns(
        ids=tuple(p.id for _, p in usable),
        sources=tuple(row["source"] for row, _ in usable),
        shares=np.array([(p.predicted or 0.0) * share / (p.measured or 1.0) for _, p in usable]),
    )


def _median(values: Array, sources: Sequence[str]) -> float:
    return float(np.exp(weighted_quantile(np.log(values), even_weights(sources), 0.5)))


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    found = campaigns(*fitting.published_rows("gpu-hours"))
    unseen = found.left_out()
    print(f"{len(found.ids)} rows of {len(set(found.sources))} sources: {SHARE.name} {found.share:.3g}")
    print(f"plain: {error_text(found.errors())}\nsources left out: {error_text(unseen)}")
    if given.write:
        fitting.write({SHARE: found.share}, "fit_campaign.py", f"{len(found.ids)} published training budgets")
        fitting.write_left_out("gpu-hours", found.ids, {"error": unseen})


if __name__ == "__main__":
    main()
