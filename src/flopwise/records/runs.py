"""Recorded runs of a store: which there are, what was measured in one, taking them out and deleting them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flopwise.keywords import takes
from flopwise.options import take
from flopwise.records.database import store_address
from flopwise.records.exports import WRITERS
from flopwise.records.model import RecordedRun
from flopwise.records.spec import RunFilter
from flopwise.records.store import open_store


@takes(RunFilter)
def runs(*, store: str | Path | None = None, **which: Any) -> list[RecordedRun]:
    """The runs in a store with the summaries of their metrics, without events; the latest first.

    Raises:
        SpecError: the store cannot be read, or one that was named is not there.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.runs(task="serve")[0].run.task
        'serve'
    """
    (chosen,) = take(which, RunFilter)
    address = store_address(store)
    if store is None and isinstance(address, Path) and not address.exists():
        return []
    opened = open_store(store, create=False)
    recorded = opened.runs(
        task=chosen.task, model=chosen.model, status=chosen.status, since_s=chosen.since_s(time.time())
    )
    summaries = opened.all_summaries([run.run_id for run in recorded])
    return [RecordedRun(run=run, summaries=summaries.get(run.run_id, {})) for run in recorded]


@takes()
def recorded_run(run: str, *, store: str | Path | None = None) -> RecordedRun:
    """A run with all its events.

    Args:
        run: id, its first digits, or a name (the latest of that name).

    Raises:
        UnknownNameError: there is none.
        SpecError: the store cannot be read.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.recorded_run(one.run.run_id[:8]).run.run_id == one.run.run_id
        True
    """
    opened = open_store(store, create=False)
    recorded = opened.run(run)
    return RecordedRun(run=recorded, summaries=opened.summaries(recorded.run_id), events=opened.events(recorded.run_id))


@takes()
def export_runs(
    runs: Sequence[str], output: str | Path, *, form: str = "jsonl", store: str | Path | None = None
) -> list[RecordedRun]:
    """Write runs to a file of JSON lines, which `import_runs` reads back, or to a folder of CSV tables.

    Args:
        runs: ids or names.
        output: the file, or the folder.
        form: "jsonl" or "csv".

    Raises:
        SpecError: no such run, the store cannot be read, or the output not written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> from tempfile import mkdtemp
        >>> len(flopwise.export_runs([one.run.run_id], mkdtemp() + "/runs.jsonl"))
        1
    """
    opened = open_store(store, create=False)
    recorded = opened.named_runs(runs)
    WRITERS[form](opened, recorded, output)
    return [RecordedRun(run=run, summaries=opened.summaries(run.run_id)) for run in recorded]


@takes()
def delete_runs(runs: Sequence[str], *, store: str | Path | None = None) -> list[str]:
    """Delete runs with all that was recorded of them, all or none; returns their ids.

    Args:
        runs: ids or names.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: the store cannot be written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.delete_runs([one.run.run_id]) == [one.run.run_id]
        True
    """
    opened = open_store(store, create=False)
    ids = [run.run_id for run in opened.named_runs(runs)]
    for run_id in ids:
        opened.delete(run_id)
    return ids
