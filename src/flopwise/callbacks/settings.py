"""Options of a recorded run: one declaration for every callback."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flopwise import options, units
from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError
from flopwise.options import Spec, option
from flopwise.values import dataclass

_recording = partial(option, "", section="Recording")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSpec(Spec):
    """Settings of a recording. None: detected, or left open."""

    name: str | None = _recording(options.name("name"), "Name in lists of runs.")
    task: str | None = _recording(options.choice("pretrain", "finetune"), "What is trained.")
    plan: Path | None = _recording(
        options.FILE, "File that `flopwise plan -o` wrote: what is expected of the run, its machines and their price.")
    plan_rank: int = _recording(options.WHOLE, "Which of its plans.", default=1)
    gpu: str | None = _recording(
        options.name("gpu", 400), "Accelerator, instead of the name that the device reports; custom ones are allowed.")
    gpus: int | None = _recording(options.DEGREE, "Accelerators of the run (default: WORLD_SIZE).")
    precision: str | None = _recording(
        options.choice(*TRAINING_PRECISIONS), "Precision of the matrix products; MFU is a share of its datasheet rate.")
    peak: float | None = _recording(
        options.FLOPS, "FLOP/s of one accelerator that MFU is a share of, instead of the datasheet's.")
    watts: float | None = _recording(
        options.WATTS, "Power of one accelerator, where neither a counter nor a sensor reports it.")
    seq: int | None = _recording(options.CONTEXT, "Tokens of a sequence, where batches do not give it.")
    tokens_per_step: float | None = _recording(options.COUNT, "Tokens of an optimizer step of all accelerators.")
    total_steps: int | None = _recording(options.WHOLE, "Optimizer steps of the whole run.")
    total_tokens: float | None = _recording(options.COUNT, "Tokens of the whole run.")
    price_usd_per_hour: float | None = _recording(
        options.USD_OR_ZERO, "US dollars an hour for all machines (default: of the plan, else of the catalog).")
    budget_usd: float | None = _recording(options.USD, "What the run may cost.")
    budget_hours: float | None = _recording(options.quantity("hours", units.parse_count, high=1e6),
        "How long it may take, in hours.")
    on_budget: str = _recording(
        options.choice("warn", "stop", "checkpoint", "ignore"), "What happens when a budget is used up.",
        default="warn")
    resume: str | None = _recording(
        options.name("run"),
        "Id or name of the run to continue, with the budget that it has used (default: a new one, linked to the "
        "checkpoint's).")
    interval: float = _recording(
        options.SECONDS, "Seconds between two samples of memory, energy, cost and time to the end.", default=1.0)
    # fmt: on

    def check(self) -> None:
        """Refuse settings that exclude each other. Raises SpecError: a way to stop without a budget."""
        if self.on_budget in ("stop", "checkpoint") and self.budget_usd is None and self.budget_hours is None:
            raise SpecError(f"on budget: {self.on_budget} needs a budget; give budget_usd or budget_hours")
