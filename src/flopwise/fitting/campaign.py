"""The share that steps have of the GPU-hours of a published pre-training: one constant, the weighted median of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flopwise.backtests.gpu_hours import CAMPAIGN, PROJECT, campaign_frac, predict_row
from flopwise.backtests.prediction import Row
from flopwise.facts.catalog import Facts
from flopwise.fitting.constants import Array, Constant
from flopwise.fitting.robust import even_weights
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


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """The value below which `share` of the weight lies, linear between rows."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share * weights.sum(), below, values[order]))
