"""What became of recorded runs: one against its plan, several against each other, all as rows of measurement files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flopwise.errors import SpecError
from flopwise.files import write_whole
from flopwise.keywords import takes
from flopwise.records.comparison import Comparison, comparison
from flopwise.records.explanation import ExplainedRun, explanation
from flopwise.records.measured import run_figures
from flopwise.records.rows import RunRows, rows_of
from flopwise.records.store import open_store


@takes()
def explain_run(run: str, *, store: str | Path | None = None, page: str | Path | None = None) -> ExplainedRun:
    """Compare a run with its expected figures, and split the difference by term.

    Args:
        run: id, its first digits, or a name.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: the store cannot be read, or the page not written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.explain_run(one.run.run_id).measured is not None
        True
    """
    opened = open_store(store, create=False)
    figures = run_figures(opened, opened.run(run))
    why = explanation(figures)
    if page is not None:
        from flopwise.records.page import write_page  # noqa: PLC0415 - few ask for a page

        write_page(page, figures, why)
    return ExplainedRun(measured=figures, explanation=why)


@takes()
def compare_runs(runs: Sequence[str], *, store: str | Path | None = None, page: str | Path | None = None) -> Comparison:
    """Runs against the first of them, and each against its plan.

    Args:
        runs: two or more, by id or name.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: fewer than two runs, or the store cannot be read.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> try:
        ...     flopwise.compare_runs([one.run.run_id])
        ... except flopwise.SpecError as error:
        ...     print(type(error).__name__)
        SpecError
    """
    opened = open_store(store, create=False)
    recorded = opened.named_runs(runs)
    if len(recorded) < 2:
        raise SpecError("one run cannot be compared; name two or more (`flopwise runs list`)")
    answer = comparison([run_figures(opened, run) for run in recorded])
    if page is not None:
        from flopwise.records.page import write_page  # noqa: PLC0415 - as in `explain_run`

        write_page(page, answer)
    return answer


@takes()
def run_rows(
    runs: Sequence[str] = (), kind: str = "training", *, store: str | Path | None = None, file: str | Path | None = None
) -> RunRows:
    """Runs as rows that `backtest` and `calibrate` read.

    Args:
        runs: ids or names; empty: all of the store.
        kind: training, memory or serving.
        file: write the rows there as CSV.

    Raises:
        UnknownNameError: there is no such run or kind.
        SpecError: the store cannot be read, the file not written, or no run makes a row.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> len(flopwise.run_rows([one.run.run_id], "serving").rows) > 0
        True
    """
    opened = open_store(store, create=False)
    chosen = opened.named_runs(runs) if runs else opened.runs()
    rows = rows_of([run_figures(opened, run) for run in chosen], kind)
    if not rows.rows:
        raise SpecError(f"no run makes a row of {kind}: {'; '.join(rows.missing[:5]) or 'the store has none'}")
    if file is not None:
        write_whole(file, rows.csv.encode())
    return rows
