"""Recording Lightning's Trainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flopwise.callbacks.begin import checked_options, training_recorder
from flopwise.callbacks.recorder import TrainingRecorder, status_of
from flopwise.errors import SpecError

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise SpecError(
            'FlopwiseLightningCallback needs lightning and torch; install them: pip install "flopwise[torch]" lightning'
        ) from error

PRECISIONS = {"bf16": "bf16", "16": "fp16", "fp16": "fp16", "64": "fp32", "32": "fp32"}


class FlopwiseLightningCallback(Callback):
    """`Trainer(callbacks=[FlopwiseLightningCallback(tokens_per_step=8192)])` records the run.

    Takes what `flopwise.callbacks.record` takes, all but the model: that is the module's `model` where it has one.
    Batches with `input_ids` say their tokens themselves.
    """

    def __init__(self, *, store: str | Path | None = None, question: Any = None, **options: Any) -> None:
        """Check the options; the run begins with the training.

        Raises: SpecError: an option that is not known, or cannot be.
        """
        self._spec, self._source = checked_options(options)
        self._store, self._question = store, question
        self.run: TrainingRecorder | None = None
        """The recorder, once the training has begun."""
        self.resumed_run: str | None = None
        self._idle_s = self._pause_s = 0.0
        self._steps = 0
        self._clear_step()

    def _clear_step(self) -> None:
        self._tokens = self._samples = self._flops = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint keeps: the id of the run that wrote it."""
        return {"resumed_run": self.resumed_run if self.run is None else self.run.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the run's id from the checkpoint from which training continues."""
        self.resumed_run = state_dict.get("resumed_run")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a run, linked to the run of the checkpoint from which training continues."""
        model = getattr(pl_module, "model", pl_module)
        settings: dict[str, object] = {
            "gpus": trainer.world_size, "dp": trainer.world_size,
            "precision": self._spec.precision or PRECISIONS.get(str(trainer.precision).partition("-")[0], "fp32"),
        }  # fmt: skip
        resumed = self.resumed_run if trainer.global_step else None
        self.run = training_recorder(
            TrainingRecorder, model if hasattr(model, "parameters") else pl_module, self._spec, self._source,
            store=self._store, question=self._question, settings=settings, resumed=resumed,
        )  # fmt: skip
        total = trainer.estimated_stepping_batches
        self.run.total_steps = self._spec.total_steps or (int(total) if total not in (-1, float("inf")) else None)
        self._steps = trainer.global_step
        self.run.begin_steps(self._steps)
        self._idle_s = time.perf_counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record the wait for the batch, and its tokens by its shape."""
        run = self.run
        if run is None:
            return
        run.add_wait(time.perf_counter() - self._idle_s)
        first = batch.get("input_ids") if isinstance(batch, Mapping) else None
        shape = tuple(getattr(first, "shape", ()))
        if not run.is_open:
            run.open(**({"seq": int(shape[1])} if len(shape) == 2 else {}))
        if len(shape) == 2:
            self._samples += shape[0]
            self._tokens += shape[0] * shape[1]
            self._flops += run.subject.flops(int(shape[0]), int(shape[1])) or 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step, if the optimizer has made one; stop the training if a budget requires it."""
        run, now_s = self.run, time.perf_counter()
        self._idle_s = now_s
        if run is None or trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        ranks = run.num_ranks
        known = {"tokens": self._tokens, "samples": self._samples, "flops": self._flops}
        run.step(loss=loss, **{name: value * ranks for name, value in known.items() if value})
        self._clear_step()
        if run.spec.on_budget in ("stop", "checkpoint") and run.should_stop and not trainer.should_stop:
            if run.spec.on_budget == "checkpoint":
                where = Path(trainer.default_root_dir) / f"budget-step-{run.steps}.ckpt"
                with run.pause("checkpoint"):
                    trainer.save_checkpoint(where)
            trainer.should_stop = True
            run.event("budget", f"{run.budget_text}; training ends here")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The loss scale of fp16, at the pace of the log, as reading it waits for the device."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self.run is not None and scaler is not None and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            self.run.loss_scale(float(scaler.get_scale()))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation is no part of a step."""
        self._pause_s = time.perf_counter()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The steps go on."""
        if self.run is not None and not trainer.sanity_checking:
            self.run.end_pause("evaluation", self._pause_s)
        self._idle_s = time.perf_counter()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The run has failed, or was stopped by a person."""
        if self.run is not None:
            self.run.end(status_of(exception))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The training has ended; by its budget where that is used up."""
        if self.run is not None:
            self.run.end("stopped" if self.run.should_stop else "finished")
