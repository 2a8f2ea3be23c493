"""Fit the share that steps have of the GPU-hours of published pre-trainings to benchmarks/truth/gpu-hours.csv.

python benchmarks/fit_campaign.py            report errors, plain and with each source left out
python benchmarks/fit_campaign.py --write    write the value, and the errors of left-out sources
"""

from __future__ import annotations

import fitting
from flopwise.fitting.campaign import SHARE, campaigns
from flopwise.fitting.robust import error_text


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
