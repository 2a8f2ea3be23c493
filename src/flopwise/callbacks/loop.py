"""Recording a training loop that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flopwise.callbacks.begin import checked_options, training_recorder
from flopwise.callbacks.recorder import BudgetReachedError, TrainingRecorder, status_of


class LoopRecorder(TrainingRecorder):
    """The recorder of a loop by hand: its `step` raises where a budget that stops is used up."""

    def step(self, **measured: Any) -> None:
        """As `TrainingRecorder.step`.

        Raises:
            BudgetReachedError: the budget is used up, and `on_budget` is `stop`; with `checkpoint` only `should_stop`
                says so, so that the loop can save what it has.
        """
        super().step(**measured)
        if self.spec.on_budget == "stop" and self.should_stop:
            raise BudgetReachedError(self.budget_text)


@contextmanager
def record(
    model: Any = None, *, store: str | Path | None = None, question: Any = None,
    settings: dict[str, object] | None = None, **options: Any,
) -> Iterator[LoopRecorder]:  # fmt: skip
    """Record a training loop by hand; `run.step(loss=loss)` ends an optimizer step.

    `model`: a module, a name, a configuration of transformers, or None. `store`: a path or a postgresql:// URL
    (default: the user's own). `question`: keywords of `flopwise.train` with its `model`, or its answer: what is
    expected of the run. `settings`: what the run shall be known by later, as keywords of `flopwise.train`. `options`:
    those of `RecordingSpec` and `SourceSpec`.

    An exception that leaves the block ends the run as failed, Ctrl-C and a budget as stopped.

    Raises: SpecError: an option, a plan or a question that cannot be.
    """
    spec, source = checked_options(options)
    run = training_recorder(LoopRecorder, model, spec, source, store=store, question=question, settings=settings)
    run.open()
    try:
        run.begin_steps()
        yield run
    except BaseException as error:
        run.end("stopped" if isinstance(error, GeneratorExit) else status_of(error))
        raise
    run.end("stopped" if run.should_stop else "finished")
