"""Recorded runs: which there are, what was measured in one, taking them out and deleting them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.keywords import takes
from flopwise.options import take
from flopwise.records.spec import RunFilter

if TYPE_CHECKING:
    from flopwise.records.model import RecordedRun


@takes(RunFilter)
def runs(*, store: str | Path | None = None, **which: Any) -> list[RecordedRun]:
    """The runs in a store with the summaries of their metrics, without events; the one that began last first.

    `store`: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in the user's data folder). `which`:
    `task`, `model` (a part of its name), `status`, `since` ("7d", "2026-11-01"), as `RunFilter` has them.

    Raises:
        SpecError: the store cannot be read, or one that was named is not there.
    """
    from flopwise.records.database import store_address
    from flopwise.records.model import RecordedRun
    from flopwise.records.store import open_store

    (chosen,) = take(which, RunFilter)
    address = store_address(store)
    if store is None and isinstance(address, Path) and not address.exists():
        return []
    opened = open_store(store, create=False)
    found = opened.runs(task=chosen.task, model=chosen.model, status=chosen.status, since_s=chosen.since_s(time.time()))
    summaries = opened.all_summaries([run.run_id for run in found])
    return [RecordedRun(run=run, summaries=summaries.get(run.run_id, {})) for run in found]


def recorded_run(run: str, *, store: str | Path | None = None) -> RecordedRun:
    """A run by its id, the first digits of it, or its name (the latest of that name), with all its events.

    Raises:
        UnknownNameError: there is none.
        SpecError: the store cannot be read.
    """
    from flopwise.records.model import RecordedRun
    from flopwise.records.store import open_store

    opened = open_store(store, create=False)
    found = opened.run(run)
    return RecordedRun(run=found, summaries=opened.summaries(found.run_id), events=opened.events(found.run_id))


def export_runs(
    runs: Sequence[str], output: str | Path, *, form: str = "jsonl", store: str | Path | None = None
) -> list[RecordedRun]:
    """Write runs to a file of JSON lines, which `import` reads back, or in the form `csv` to a folder of tables.

    Raises:
        SpecError: no such run, the store cannot be read, or the output not written.
    """
    from flopwise.records.exports import WRITERS
    from flopwise.records.model import RecordedRun
    from flopwise.records.store import open_store

    opened = open_store(store, create=False)
    found = list({(run := opened.run(key)).run_id: run for key in runs}.values())
    WRITERS[form](opened, found, output)
    return [RecordedRun(run=run, summaries=opened.summaries(run.run_id)) for run in found]


def delete_runs(runs: Sequence[str], *, store: str | Path | None = None) -> list[str]:
    """Delete runs with all that was recorded of them; their ids. None is deleted where one is not found.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: the store cannot be written.
    """
    from flopwise.records.store import open_store

    opened = open_store(store, create=False)
    ids = list(dict.fromkeys(opened.run(key).run_id for key in runs))
    for run_id in ids:
        opened.delete(run_id)
    return ids
