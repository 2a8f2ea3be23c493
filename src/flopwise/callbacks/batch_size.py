"""The largest batch that fits: guessed by the memory model, confirmed by few trials."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flopwise.api.memory import memory
from flopwise.callbacks.devices import STATUS, resident_peak_bytes
from flopwise.callbacks.subject import TrainedModel, trained_model
from flopwise.errors import FlopwiseError, InfeasibleError, SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import BYTES
from flopwise.units import format_bytes
from flopwise.values import dataclass

HEADROOM = 0.05
"""Share of the memory that is left free: what an allocator cannot use for its holes, and batches that are longer."""
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class BatchTrial:
    """One trial: sequences, success, and its peak memory (None where it ran out)."""

    batch: int
    fits: bool
    peak_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The largest batch that a trial confirmed, the first guess, and the trials in order."""

    batch: int
    guess: int | None  # by the memory model; None where the architecture is not known
    limit_bytes: float
    peak_bytes: float
    trials: tuple[BatchTrial, ...]
    basis: str


def find_batch_size(
    model: Any, make_batch: Callable[[int], Any], *, memory_limit: float | str | None = None, seq: int | None = None,
    optimizer: Any = None, step: Callable[[Any, Any], Any] | None = None, most: int = 65_536, max_trials: int = 8,
    **options: Any,
) -> BatchSize:  # fmt: skip
    """The largest batch of `make_batch(sequences)` whose forward and backward pass fit into memory.

    The memory model of `flopwise memory` says how many sequences fit and what one of them takes; a trial there and a
    few by what was measured then end between the largest batch that fits and the next. Running out of memory is caught.
    `memory_limit`: bytes, as 8e9 or "8GB" (default: the device's; a CPU needs one, its own trials stop short of it).
    `optimizer`: what it will keep is left free, as no trial makes a step: weights, buffers and random numbers stay as
    they are. `step(model, batch)` gives the loss (default: the `loss` of the model's output). `seq`: tokens of a
    sequence, where `input_ids` do not say it. `options`: of `flopwise.memory`, such as `recompute`.

    Raises: SpecError: neither torch nor a limit is there. InfeasibleError: not even one sequence fits.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise SpecError('only the batch size of a PyTorch module can be searched: pip install "flopwise[torch]"')
    trials = _Trials(torch, model, make_batch, step or _loss, memory_limit, _states_bytes(optimizer))
    subject = trained_model(model, SourceSpec().catalog)
    length = seq or _length(trials.sample())
    slope, fixed = _bytes_per_sequence(subject, length, options, trials)
    room = trials.limit_bytes
    guess = None if slope is None else max(1, min(most, int((room - fixed) / slope)))
    low, high = 0, most + 1  # fits; does not
    batch = 1 if trials.is_cpu or guess is None else guess  # to run out of memory on a CPU ends the program
    while len(trials.rows) < max_trials and high - low > 1:
        trial = trials.run(batch)
        low, high = (max(low, batch), high) if trial.fits else (low, min(high, batch))
        if high == 1:
            break
        batch = min(max(_next(trials, slope, low, high), low + 1), high - 1)
        if low and trials.is_cpu and batch > low + 1 and low == 1 and guess is not None:
            batch = min(batch, max(2, guess))  # of the two, the more careful one
        if low and (high - low) <= max(1, low // 50) and high <= most:
            break
    if not low:
        needed = [row.peak_bytes for row in trials.rows if row.peak_bytes is not None]
        took = f"; it takes {format_bytes(min(needed))}" if needed else ""
        raise InfeasibleError(f"not even one sequence fits into {format_bytes(room)}{took}")
    peak = next(row.peak_bytes for row in trials.rows if row.batch == low)
    return BatchSize(
        batch=low, guess=guess, limit_bytes=room, peak_bytes=float(peak or 0.0), trials=tuple(trials.rows),
        basis=subject.basis if slope is None else f"memory of {subject.name} estimated for {length} tokens a sequence",
    )  # fmt: skip


def _next(trials: _Trials, slope: float | None, low: int, high: int) -> int:
    """The next batch to try: where the line through what was measured meets the limit; else twice, or between."""
    known = sorted((row.batch, row.peak_bytes) for row in trials.rows if row.peak_bytes is not None)
    ends = [point for point in known if point[0] in (low, high)]
    nearest = ends if len(ends) > 1 else known[-2:]  # the largest that fits and the smallest that does not, if measured
    if len(nearest) > 1 and nearest[1][1] > nearest[0][1]:
        (one, at_one), (two, at_two) = nearest
        slope = (at_two - at_one) / (two - one)
    if known and slope and (len(known) > 1 or len(known) == len(trials.rows)):
        batch, peak = nearest[-1]
        return int(batch + (trials.limit_bytes - peak) / slope)
    if len(known) == len(trials.rows):
        return 2 * low
    if not low:  # the guess was too high: half of it, then what is certain
        return high // 2 if len(trials.rows) == 1 else 1
    return int(math.sqrt(low * high))


def _bytes_per_sequence(
    subject: TrainedModel, seq: int | None, options: Mapping[str, Any], trials: _Trials
) -> tuple[float | None, float]:
    """(bytes of one more sequence, bytes of none): by the memory model, and what is held already, with gradients.

    None where the model's layers are not known.
    """
    if subject.model is None or seq is None:
        return None, 0.0
    recipe = {"precision": trials.precision, "seq": seq, **options}
    try:
        one, many = (memory(subject.model, micro_batch=n, **recipe).per_gpu_bytes for n in (1, 9))
    except FlopwiseError:
        return None, 0.0
    slope = (many - one) / 8
    return (slope, trials.base_bytes + trials.grad_bytes) if slope > 0 else (None, 0.0)


def _length(batch: Any) -> int | None:
    """Tokens of a sequence of a batch."""
    first = batch.get("input_ids") if isinstance(batch, Mapping) else None
    shape = tuple(getattr(first, "shape", ()))
    return int(shape[1]) if len(shape) == 2 else None


def _loss(model: Any, batch: Any) -> Any:
    """The loss of a model of transformers, or of any whose output has one or is one."""
    output = (
        model(**batch) if isinstance(batch, Mapping) else model(*batch) if isinstance(batch, tuple) else model(batch)
    )
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if loss is None:
        raise SpecError("the model's output has no loss: give batches with labels, or step=, which returns a loss")
    return loss.sum()


def _states_bytes(optimizer: Any) -> float:
    """Bytes of optimizer states that do not exist yet: as `flopwise memory` counts the named one, else Adam's.

    Source: torch.optim: two moments as large as the parameter for Adam and its like; one, or none, for SGD.
    Assumes: an optimizer of another kind keeps as much as Adam.
    """
    if optimizer is None or optimizer.state:
        return 0.0
    total = 0.0
    for group in optimizer.param_groups:
        moments = 2.0
        if type(optimizer).__name__ == "SGD":
            moments = 1.0 if group.get("momentum") else 0.0
        total += moments * sum(one.numel() * one.element_size() for one in group["params"] if one.requires_grad)
    return total


class _Trials:
    """Runs trials, and measures them: by the allocator of a GPU, or by the resident set of this process."""

    def __init__(
        self, torch: Any, model: Any, make_batch: Callable[[int], Any], step: Callable[[Any, Any], Any],
        memory_limit: float | str | None, states_bytes: float,
    ) -> None:  # fmt: skip
        self._torch, self._model, self._make_batch, self._step = torch, model, make_batch, step
        parameter = next(model.parameters())
        self.is_cpu, self._device = parameter.device.type == "cpu", parameter.device
        self.precision = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(str(parameter.dtype), "fp32")
        limit = None if memory_limit is None else BYTES.parse(memory_limit, "memory limit")
        if limit is None:
            if self.is_cpu:
                raise SpecError("on a CPU the batch needs a limit; give memory_limit, as in memory_limit='8GB'")
            free, _ = torch.cuda.mem_get_info(self._device)
            limit = (1.0 - HEADROOM) * (free + torch.cuda.memory_reserved(self._device))
        self.limit_bytes = limit - states_bytes
        self.rows: list[BatchTrial] = []
        self.base_bytes = self._settled_bytes()
        self.grad_bytes = float(
            sum(
                one.numel() * one.element_size() for one in model.parameters() if one.requires_grad and one.grad is None
            )
        )

    def _settled_bytes(self) -> float:
        """Bytes allocated after everything that can be freed has been."""
        gc.collect()
        if not self.is_cpu:
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats(self._device)
            return float(self._torch.cuda.memory_reserved(self._device))
        with contextlib.suppress(OSError, AttributeError):  # of the C library of GNU
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
        with contextlib.suppress(OSError):
            pages = int(STATUS.with_name("statm").read_text(encoding="ascii").split()[1])
            return float(pages * os.sysconf("SC_PAGE_SIZE"))
        return resident_peak_bytes()

    def sample(self) -> Any:
        """A batch of one sequence, to look at."""
        with self._preserve():
            return self._make_batch(1)

    def run(self, batch: int) -> BatchTrial:
        """One forward and backward pass over `batch` sequences, after which everything is as it was."""
        self._settled_bytes()
        with self._preserve():
            try:
                self._step(self._model, self._make_batch(batch)).backward()
                peak: float | None = self._peak_bytes()
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                peak = None
        trial = BatchTrial(batch, peak is not None and peak <= self.limit_bytes, peak)
        self.rows.append(trial)
        self._settled_bytes()
        return trial

    def _peak_bytes(self) -> float:
        if self.is_cpu:
            return resident_peak_bytes()
        self._torch.cuda.synchronize(self._device)
        return float(self._torch.cuda.max_memory_reserved(self._device))

    @contextlib.contextmanager
    def _preserve(self) -> Iterator[None]:
        """Gradients, buffers, mode and random numbers are afterwards what they were."""
        model, training = self._model, self._model.training
        buffers = [(one, one.detach().clone()) for one in model.buffers()]
        grads = [(one, one.grad) for one in model.parameters()]
        devices = [] if self.is_cpu else [self._device]
        for one, _ in grads:
            one.grad = None
        model.train()
        try:
            with self._torch.random.fork_rng(devices):
                yield
        finally:
            for one, grad in grads:
                one.grad = grad
            with self._torch.no_grad():
                for one, before in buffers:
                    one.copy_(before)
            model.train(training)


def _is_out_of_memory(error: BaseException) -> bool:
    """True if an exception says that memory ran out, of a GPU or of the host."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)
