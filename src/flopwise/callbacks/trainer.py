"""Recording the Trainer of Hugging Face transformers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from flopwise.callbacks.begin import checked_options, training_recorder
from flopwise.callbacks.recorder import TrainingRecorder, status_of
from flopwise.errors import SpecError
from flopwise.values import replace

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise SpecError(
        'FlopwiseCallback needs transformers and torch; install them: pip install "flopwise[torch]" transformers'
    ) from error

LOGGED = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "learning_rate", "eval_loss": "eval_loss"}
"""What the Trainer logs, and the metrics that it is."""
_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")


class FlopwiseCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """`Trainer(..., callbacks=[FlopwiseCallback(budget_usd=20, on_budget="checkpoint")])` records the run.

    Takes what `flopwise.callbacks.record` takes, all but the model. Tokens are read off the batches that the model is
    given; with `torch_compile` give `tokens_per_step`, as nothing is hooked into a model that is compiled. A run that
    goes on from a checkpoint is linked to the one that wrote it; `resume=RUN` continues it.

    The Trainer tells no callback of an exception: the run has failed when the program ends by it. Where the program
    goes on, as in a notebook, use it as a context manager: `with FlopwiseCallback() as callback:` around the training.
    """

    def __init__(self, *, store: str | Path | None = None, question: Any = None, **options: Any) -> None:
        """Check the options; the run begins with the training.

        Raises: SpecError: an option that is not known, or cannot be.
        """
        self._given = {"store": store, "question": question, **options}
        self._spec, self._source = checked_options(options)
        self._store, self._question = store, question
        self.run: TrainingRecorder | None = None
        """The recorder, once the training has begun."""
        self.resumed_run: str | None = None
        self._hooks: list[Any] = []
        self._clear_step()
        self._idle_s: float | None = None
        self._pause_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._end(status_of(error))

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint keeps: the id of its run; not the store, whose address may hold a password."""
        run = self.resumed_run if self.run is None else self.run.run_id
        plain = (str, int, float, bool, dict, list, type(None))
        kept = {name: value for name, value in self._given.items() if name != "store"}
        given = {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}
        given = {name: value for name, value in given.items() if isinstance(value, plain)}
        return {"args": given, "attributes": {"resumed_run": run}}

    def _clear_step(self) -> None:
        self._tokens = self._samples = self._flops = 0.0
        self._shape: tuple[int, int] | None = None
        self._has_flops = True

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin a run, linked to that of the checkpoint that this training goes on from."""
        self._end("stopped")
        resumed = self._resumed_run(state) if state.global_step else None
        settings = _settings(args, model)
        if self._spec.precision is None:
            settings["precision"] = _precision(args, model)
        self.run = training_recorder(
            TrainingRecorder, model, self._spec_of(args, model), self._source, store=self._store,
            question=self._question, settings=settings, resumed=resumed,
        )  # fmt: skip
        self.run.total_steps = state.max_steps
        self.run.begin_steps(state.global_step)
        if not getattr(args, "torch_compile", False):
            self._hooks = [model.register_forward_pre_hook(self._look_at, with_kwargs=True)]
            self._hooks.append(model.register_forward_hook(self._look_at_loss))
        self._idle_s = time.perf_counter()

    def _spec_of(self, args: Any, model: Any) -> Any:
        """The options, with what the Trainer knows."""
        spec = self._spec
        task = "finetune" if getattr(getattr(model, "config", None), "_name_or_path", "") else None
        name = spec.name or getattr(args, "run_name", None) or None
        if name == args.output_dir:
            name = None
        return replace(
            spec, precision=spec.precision or _precision(args, model), name=name, task=spec.task or task,
        )  # fmt: skip

    def _resumed_run(self, state: Any) -> str | None:
        """The run that wrote the checkpoint, of this callback's state in it."""
        if self.resumed_run is not None:
            return self.resumed_run
        kept = getattr(state, "stateful_callbacks", {}).get(type(self).__name__)
        first = kept[0] if isinstance(kept, list) and kept else kept
        return first.get("attributes", {}).get("resumed_run") if isinstance(first, Mapping) else None

    def _look_at(self, model: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Before a forward pass: the shape of the batch; nothing is read from a device."""
        if not model.training or self.run is None:
            return
        given = next((kwargs[name] for name in _INPUTS if kwargs.get(name) is not None), args[0] if args else None)
        shape = [int(size) for size in getattr(given, "shape", ())]
        if not shape:
            return
        batch, seq = shape[0], 1 if "pixel_values" in kwargs else (shape[1] if len(shape) > 1 else 1)
        labels, subject = list(getattr(kwargs.get("labels"), "shape", ())), self.run.subject
        encoder = None
        if subject.model is not None and subject.model.kind == "encoder-decoder" and len(labels) == 2:
            seq, encoder = int(labels[1]), seq
        if not self.run.is_open:
            self.run.open(**({"seq": encoder or seq} if seq > 1 else {}))
        flops = subject.flops(batch, seq, encoder)
        self._samples += batch
        self._tokens += batch * (seq + (encoder or 0))
        self._flops, self._has_flops = self._flops + (flops or 0.0), self._has_flops and flops is not None

    def _look_at_loss(self, model: Any, _: Any, output: Any) -> None:
        """After a forward pass on a CPU: a loss that is no number, which the Trainer's own log leaves out."""
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if model.training and self.run is not None and loss is not None and not loss.is_cuda:
            self.run.finite_values({"loss": float(loss.detach())}, "part")

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Begin an epoch: the loop waits for its first batch."""
        self._idle_s = time.perf_counter()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin a step, whose batches are there: the time since the last step was the wait for them."""
        if self.run is not None and self._idle_s is not None:
            self.run.add_wait(time.perf_counter() - self._idle_s)
        self._idle_s = self._pause_s = None

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> Any:
        """Write the step; end the training where a budget is used up."""
        run = self.run
        if run is None:
            return control
        if getattr(optimizer, "step_was_skipped", False):
            run.event("skipped_step", "gradients overflowed in fp16: the optimizer skipped this step")
        tokens = self._tokens * run.num_ranks or None
        flops = self._flops * run.num_ranks if self._has_flops and self._flops else None
        run.step(tokens=tokens, samples=self._samples * run.num_ranks or None, flops=flops)
        self._clear_step()
        if run.spec.on_budget in ("stop", "checkpoint") and run.should_stop:
            control.should_training_stop = True
            control.should_save = control.should_save or run.spec.on_budget == "checkpoint"
            run.event("budget", f"{run.budget_text}; training ends here")
        self._await_pause(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation or a checkpoint may follow."""
        self._await_pause(control)

    def _await_pause(self, control: Any) -> None:
        self._idle_s = time.perf_counter()
        self._pause_s = self._idle_s if control.should_save or control.should_evaluate else None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, optimizer: Any = None, **_: Any) -> None:
        """Write what the Trainer has logged, which has waited for the device."""
        if self.run is None:
            return
        values = {LOGGED[name]: float(value) for name, value in (logs or {}).items() if name in LOGGED}
        self.run.log(values, state.global_step)
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None:
            self.run.loss_scale(float(scaler.get_scale()))
        self._idle_s = time.perf_counter()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """The evaluation is no part of the next step."""
        self._end_pause("evaluation")

    def on_save(self, *_: Any, **__: Any) -> None:
        """The checkpoint is no part of the next step."""
        self._end_pause("checkpoint")

    def _end_pause(self, what: str) -> None:
        if self.run is not None and self._pause_s is not None:
            self.run.end_pause(what, self._pause_s)
            self._pause_s = time.perf_counter()  # a checkpoint may follow an evaluation
        self._idle_s = time.perf_counter()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training has ended; by its budget where that is used up."""
        self._end("stopped" if self.run is not None and self.run.should_stop else "finished")

    def _end(self, status: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.run is not None:
            self.run.end(status)


def _precision(args: Any, model: Any) -> str:
    """Of the matrix products: by autocast, else by the weights."""
    if args.bf16 or args.fp16:
        return "bf16" if args.bf16 else "fp16"
    dtype = str(getattr(model, "dtype", "float32")).removeprefix("torch.")
    if dtype in ("bfloat16", "float16"):
        return {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    return "tf32" if getattr(args, "tf32", None) else "fp32"


def _settings(args: Any, model: Any) -> dict[str, object]:
    """The Trainer's settings as keywords of `flopwise.train`."""
    ranks, each = max(1, args.world_size), args.per_device_train_batch_size * max(1, args.n_gpu or 1)
    settings: dict[str, object] = {
        "gpus": ranks, "dp": ranks, "micro_batch": each, "stack": "hf",
        "global_batch": each * ranks * args.gradient_accumulation_steps,
        "optimizer": str(getattr(args.optim, "value", args.optim)).removesuffix("_torch_fused").removesuffix("_torch"),
    }  # fmt: skip
    if args.gradient_checkpointing:
        settings["recompute"] = "full"
    peft = getattr(model, "peft_config", None)
    if isinstance(peft, Mapping) and peft:
        settings["lora"] = getattr(next(iter(peft.values())), "r", None)
    return settings
