"""Recording a run of training: what each step took, what it cost so far, and whether it goes as it was expected to."""

from __future__ import annotations

import atexit
import math
import os
import platform
import re
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from statistics import fmean, median
from typing import Any, Generic, TypeVar

from flopwise.callbacks.budget import RunBudget
from flopwise.callbacks.devices import EnergyMeter, LocalDevices, torch_cuda
from flopwise.callbacks.safe_writer import SafeWriter
from flopwise.callbacks.settings import RecordingSpec
from flopwise.callbacks.subject import trained_model
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError, UnknownNameError
from flopwise.facts.spec import SourceSpec
from flopwise.records.expectation import ExpectedTraining
from flopwise.records.model import RecordedRun, Run, RunStatus
from flopwise.units import HOUR_S, format_number, format_percent, format_seconds, format_usd
from flopwise.values import dataclass, replace

RECENT = 50
"""Steps that the time to the end, and the comparison with the plan, rest on."""
SETTLED = 5
"""Steps after which the first ones, which compile and allocate, no longer count."""
SPIKE = 5.0
"""Times the median of its last values from which a gradient's norm is a spike."""
OPEN_WAIT_S = 5.0
"""How long a run waits at most for its store to be opened before the first step; later it is opened beside them."""
USED_UP = ("elapsed_s", "cost_usd", "energy_joules", "tokens")
"""Totals of a run that go on where another process left them."""
ID = re.compile(r"[0-9a-f]{32}")
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "peft", "deepspeed")


T = TypeVar("T")


class StepClock(Generic[T]):
    """Seconds of each step, as soon as they are known; values passed with a step are returned with it.

    On a GPU the host runs ahead: a step is between two events, which are read once the GPU has passed the second. No
    call waits for it but the last.
    """

    def __init__(self) -> None:
        self._cuda = torch_cuda()
        self._waiting = deque[tuple[Any, Any, T]]()
        self._start = self._mark()

    def _mark(self) -> Any:
        """Now, on the time line that steps are measured on."""
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """Restart the clock, so that the time since the last step (an evaluation, a checkpoint) is in no step."""
        self._start = self._mark()

    def end_step(self, extra: T) -> None:
        """A step has ended, as far as the host sees, and the next begins."""
        mark = self._mark()
        self._waiting.append((self._start, mark, extra))
        self._start = mark

    def timed_steps(self, *, wait: bool = False) -> Iterator[tuple[float, T]]:
        """Seconds and extras of the steps that have ended since the last call, oldest first; `wait`: of all."""
        while self._waiting:
            start, end, extra = self._waiting[0]
            if self._cuda is None:
                seconds = end - start
            elif wait or end.query():
                if wait:
                    end.synchronize()
                seconds = start.elapsed_time(end) / 1e3
            else:
                return
            self._waiting.popleft()
            yield seconds, extra


ASK_EVERY = 10
"""Steps after which a rank asks whether the run is to end; ranks are never as many steps apart."""


class Agreement:
    """All ranks end after the same step: one that stopped alone would leave the others waiting for it for ever.

    Rank 0 writes the number of a step that none has reached into the store that ranks met at; every rank asks for it
    now and then. That costs a message of the host, and no GPU waits.
    """

    _made = 0

    def __init__(self, num_ranks: int, rank: int) -> None:
        """Alone, a rank agrees with itself at once."""
        self._num_ranks, self._rank = num_ranks, rank
        Agreement._made += 1  # alike on all ranks, which make theirs in the same order
        self._key = f"flopwise/last_step/{Agreement._made}"
        self.last_step: int | None = None
        """Of all ranks, once they have agreed."""

    def _store(self) -> Any | None:
        """The rendezvous store of the ranks; None where they do not talk to one another."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way to it

    def agree(self, step: int, *, wants_end: bool) -> None:
        """After `step`, agree on the last step: rank 0 names it, the others receive it from time to time."""
        if self.last_step is not None:
            return
        if self._rank == 0 and wants_end:
            store = self._store() if self._num_ranks > 1 else None
            if store is None:
                self.last_step = step
            else:
                self.last_step = (step // ASK_EVERY + 2) * ASK_EVERY
                store.set(self._key, str(self.last_step))
        elif self._rank and step % ASK_EVERY == 0:
            store = self._store()
            if store is not None and store.check([self._key]):
                self.last_step = int(store.get(self._key))


class BudgetReachedError(FlopwiseError):
    """A budget is used up: raised by a plain loop's `step` where `on_budget` is `stop` or `checkpoint`."""


@dataclass(slots=True)
class _Step:
    """The facts of a step at its end."""

    number: int
    at_s: float
    tokens: float | None
    samples: float | None
    flops: float | None
    wait_s: float | None  # None: the loop says nothing of its batches
    values: dict[str, Any]


class TrainingRecorder:
    """One run of training that is going on. All ranks have one; that of rank 0 records.

    Nothing in it raises into the loop but what was asked for: a budget that stops, and settings that cannot be.
    """

    def __init__(
        self, spec: RecordingSpec, subject: Any, *, store: str | Path | None = None,
        expected: ExpectedTraining | None = None, source: SourceSpec | None = None,
        settings: Mapping[str, object] | None = None, resumed: str | None = None,
    ) -> None:  # fmt: skip
        """`subject`: the model, as `trained_model` takes it; `resumed`: the run that this new one goes on from.

        Raises: SpecError: a name that is not known.
        """
        spec.check()
        facts = (source or SourceSpec()).catalog
        self._pid, self._ended = os.getpid(), False
        self.rank, self.num_ranks = (
            int(os.environ.get(name) or usual) for name, usual in (("RANK", 0), ("WORLD_SIZE", 1))
        )
        self.spec, self.expected = spec, expected
        self.gpus = spec.gpus or self.num_ranks
        self.devices = LocalDevices.of(facts, spec.gpu, subject)
        self.subject = trained_model(subject, facts, name=None if expected is None else expected.model)
        self.precision = spec.precision or str(
            (settings or {}).get("precision") or (expected.precision if expected else "bf16")
        )
        self._peak = spec.peak or self.devices.peak_flops_per_s(self.precision)
        self._price, price_basis = self._hourly(facts)
        self._wall_s, self._start_s = time.time(), time.perf_counter()
        earlier = _recorded_run(store, spec.resume) if spec.resume is not None and not self.rank else None
        self._earlier = {name: earlier.figure(name) or 0.0 if earlier is not None else 0.0 for name in USED_UP}
        self.budget = RunBudget(
            spec, self._price, earlier_usd=self._earlier["cost_usd"], earlier_s=self._earlier["elapsed_s"]
        )
        self._agreement = Agreement(self.num_ranks, self.rank)
        self.total_steps = spec.total_steps
        self.steps = self._first_step = 0
        self._tokens, self._pauses = self._earlier["tokens"], 0.0
        self._waits: float | None = None  # None until the loop says how long it waits
        self._recent = deque[tuple[float, float, float]](maxlen=RECENT)  # seconds, tokens, seconds of waiting
        self._norms = deque[float](maxlen=RECENT)
        self._scale: float | None = None
        self._off_plan, self._odd = False, set[str]()
        self._clock: StepClock[_Step] | None = None
        self.latest: dict[str, float] = {}
        """The last value of each metric of the run, and of its fullest device."""
        self.run = self._as_run(settings or {}, resumed)
        if earlier is not None:
            self.run = replace(self.run, run_id=earlier.run.run_id, started_at_s=earlier.run.started_at_s)
        self._bases = [self.subject.basis, *self.devices.notes, price_basis]
        self._usual_tokens, self._seq = spec.tokens_per_step, spec.seq
        if expected is not None:
            self._usual_tokens = spec.tokens_per_step or expected.tokens_per_step
            self._seq = spec.seq or expected.seq
            self._bases.append(
                f"tokens: {self._usual_tokens:,.0f} a step, as expected, where a step does not report its own"
            )
        self._where, self._resumed = store, self.run_id if earlier is not None else resumed
        self._writer: Any = None
        self._meter: EnergyMeter | None = None
        self._stop_sampling = threading.Event()
        self.is_open = False

    def open(self, **settings: object) -> None:
        """Begin to record, once, with `settings` of the first batch besides those known before."""
        if self.is_open:
            return
        self.is_open, self.run = True, replace(self.run, settings={**self.run.settings, **settings})
        if self.rank:
            return
        self._writer = SafeWriter(self._where, self.run, "this run is")
        self._meter = EnergyMeter.of(self.devices, self.gpus, self.spec.watts)
        for basis in filter(None, [*self._bases, getattr(self._meter, "basis", "")]):
            self.event("basis", basis)
        if self._resumed:
            self.event("resumed", f"continues run {self._resumed}")
        if self._records():  # imports and migrations of a database take half a second of one core: not of the steps
            self._writer.flush(OPEN_WAIT_S, retry=False)
        threading.Thread(target=self._sample_often, name="flopwise-sampler", daemon=True).start()
        atexit.register(self._end_at_exit)

    def _hourly(self, facts: Any) -> tuple[float | None, str]:
        """US dollars an hour for all machines, and where that is from."""
        if self.spec.price_usd_per_hour is not None:
            return self.spec.price_usd_per_hour, "price: as given"
        if self.expected is not None and self.expected.price_usd_per_hour is not None:
            return self.expected.price_usd_per_hour, "price: of the plan"
        if self.devices.accelerator is None or (self.devices.kind == "cpu" and self.spec.gpu is None):
            return None, "price: not known (price_usd_per_hour=)"
        try:
            machines = MachineSpec(gpu=self.spec.gpu or self.devices.name).cluster(self.gpus, facts)
        except FlopwiseError as error:
            return None, f"price: not known ({error})"
        each = machines.usd_per_gpu_hour
        return (
            (None, "price: not in the catalog")
            if each is None
            else (each * self.gpus, f"price: {machines.price_source}")
        )

    def _as_run(self, settings: Mapping[str, object], resumed: str | None) -> Run:
        """The run as the store has it."""
        given, expected = self.spec, self.expected
        known = {} if expected is None else dict(expected.settings)
        here = {"gpu": given.gpu or self.devices.name, "precision": self.precision}
        linked = {"resumed_from": resumed} if resumed else {}
        return Run(
            run_id=given.resume if given.resume and ID.fullmatch(given.resume) else uuid.uuid4().hex,
            name=given.name or self.subject.name or "training",
            task=given.task or (expected.task if expected is not None else "pretrain"),  # type: ignore[arg-type]
            started_at_s=self._wall_s, model=self.subject.name, gpu=self.devices.name, gpus=self.gpus,
            host=platform.node() or None, software=_versions(), budget_usd=given.budget_usd,
            settings={**known, **here, **settings, **linked},
            price_usd_per_hour=self._price, expected=None if expected is None else expected.expected,
        )  # fmt: skip

    @property
    def run_id(self) -> str:
        """Of the run in the store."""
        return self.run.run_id

    @property
    def elapsed_s(self) -> float:
        """Since this process began to record, by a clock that nobody sets."""
        return time.perf_counter() - self._start_s

    @property
    def cost_usd(self) -> float | None:
        """The cost of the machines so far, earlier processes of the run included, in USD; None without a price."""
        if self._price is None:
            return None
        return self._earlier["cost_usd"] + self._price * self.elapsed_s / HOUR_S

    @property
    def should_stop(self) -> bool:
        """True if a budget is used up and the run is to end; all ranks return the same after the same step."""
        last = self._agreement.last_step
        return last is not None and self.steps >= last

    @property
    def eta_s(self) -> float | None:
        """Seconds until the run ends at the rate of its last steps, evaluations and checkpoints in their share."""
        if not self._recent:
            return None
        active = max(1e-9, self.elapsed_s - self._pauses)
        step_s, tokens = fmean(s for s, _, _ in self._recent), fmean(t for _, t, _ in self._recent)
        total = self.spec.total_tokens or (None if self.expected is None else self.expected.total_tokens)
        left: float | None = None
        if self.total_steps is not None:
            left = self.total_steps - self.steps
        elif total is not None and tokens > 0:
            left = (total - self._tokens) / tokens
        return None if left is None else max(0.0, left) * step_s * (1.0 + self._pauses / active)

    def _now_s(self) -> float:
        """Seconds since 1970, by a clock that only runs on."""
        return self._wall_s + self.elapsed_s

    def _records(self) -> bool:
        """True if anything is to be written: by rank 0, in the process that the run began in."""
        writes = self._writer is not None and self._writer.is_open
        return writes and not self._ended and os.getpid() == self._pid

    def event(self, kind: str, text: str, *, device: str = "") -> None:
        """Something that happened once."""
        if self._records():
            self._writer.event(kind, text, at_s=self._now_s(), step=self.steps or None, device=device)

    def begin_steps(self, done: int = 0) -> None:
        """The first step begins now; `done`: steps of an earlier run that this one goes on from."""
        self.steps = self._first_step = done
        self._clock = StepClock()

    def add_wait(self, seconds: float) -> None:
        """The loop waited this long for its next batch."""
        self._waits = (self._waits or 0.0) + seconds

    def data(self, batches: Any) -> Iterator[Any]:
        """The batches of an iterable, with the time that the loop waits for each."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.add_wait(time.perf_counter() - start)
            yield batch

    @contextmanager
    def pause(self, what: str = "evaluation") -> Iterator[None]:
        """Exclude the time inside the block (an evaluation, a checkpoint) from the steps."""
        since_s = time.perf_counter()
        try:
            yield
        finally:
            self.end_pause(what, since_s)

    def end_pause(self, what: str, since_s: float) -> None:
        """A pause has ended that began at `since_s` of `time.perf_counter`."""
        seconds = time.perf_counter() - since_s
        self._pauses += seconds
        if self._clock is not None:
            self._clock.restart()
        self.event(what, f"{what}: {format_seconds(seconds)}")

    def step(
        self, *, tokens: float | None = None, samples: float | None = None, flops: float | None = None,
        loss: Any = None, grad_norm: Any = None, learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        """An optimizer step has ended. `tokens`, `samples`, `flops`: of it, on all ranks together.

        Scalars on a GPU may be given as they are: nothing waits for them.
        """
        if os.getpid() != self._pid or self._ended:
            return
        self.open()
        if self._clock is None:
            self.begin_steps()
        assert self._clock is not None
        self.steps += 1
        tokens = self._usual_tokens if tokens is None else tokens
        if flops is None and tokens is not None and (self._seq or self.subject.model is None):
            flops = self.subject.flops(tokens / (self._seq or 1), self._seq or 1)
        values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate}
        soon = {name: _number_soon(value) for name, value in values.items() if value is not None}
        wait_s, self._waits = self._waits, None if self._waits is None else 0.0
        self._clock.end_step(_Step(self.steps, self._now_s(), tokens, samples, flops, wait_s, soon))
        self._write_known()
        self._check_budget()

    def _write_known(self, *, wait: bool = False) -> None:
        """Write the steps whose time is known."""
        assert self._clock is not None
        for step_s, step in self._clock.timed_steps(wait=wait):
            values: dict[str, float] = {"step_s": step_s}
            if step.wait_s is not None:
                values["data_wait_s"] = min(step.wait_s, step_s)
            if step.tokens is not None:
                self._tokens += step.tokens
                values["tokens_per_s"] = step.tokens / step_s
            if step.samples is not None:
                values["samples_per_s"] = step.samples / step_s
            if step.flops is not None:
                values["model_flops_per_s"] = step.flops / step_s
                if self._peak is not None:
                    values["mfu_frac"] = step.flops / step_s / (self._peak * self.gpus)
            if step.number == self._first_step + SETTLED:
                self._recent.clear()
            self._recent.append((step_s, step.tokens or 0.0, values.get("data_wait_s", 0.0)))
            values |= self.finite_values({name: float(value) for name, value in step.values.items()})
            self.add(values, at_s=step.at_s, step=step.number)

    def add(self, values: Mapping[str, float], *, at_s: float | None = None, step: int | None = None) -> None:
        """Record values of the run besides those of `step`: an evaluation's loss, a library's log."""
        self.latest.update(values)
        if self._records() and values:
            self._writer.add(self._now_s() if at_s is None else at_s, values, step=step or self.steps)

    def finite_values(self, values: dict[str, float], source: str = "step") -> dict[str, float]:
        """`values` of a loop without those that are not finite, each streak of which becomes one event."""
        odd = [name for name, value in values.items() if not math.isfinite(value)]
        if odd and source not in self._odd:
            self.event("not_finite", ", ".join(f"{name} is {values[name]}" for name in odd))
        if values:
            (self._odd.add if odd else self._odd.discard)(source)
        norm = values.get("grad_norm")
        if norm is not None and math.isfinite(norm):
            usual = median(self._norms) if len(self._norms) >= SETTLED else math.inf
            if norm > SPIKE * usual > 0:
                self.event(
                    "grad_norm_spike",
                    f"gradient norm {format_number(norm, 4)}, {norm / usual:.1f} times its median "
                    f"{format_number(usual, 4)}",
                )
            self._norms.append(norm)
        return {name: value for name, value in values.items() if name not in odd}

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record loss, gradient norm and other values that a library logs from time to time."""
        self.add(self.finite_values(dict(values), "log"), step=step)

    def loss_scale(self, scale: float) -> None:
        """The factor of the loss in fp16; an event where it changed."""
        if self._scale is not None and scale != self._scale:
            self.event("loss_scale", f"loss scale from {self._scale:g} to {scale:g}")
        self._scale = scale
        self.add({"loss_scale": scale})

    def _sample_often(self) -> None:
        """Samples, until the run ends."""
        while not self._stop_sampling.wait(self.spec.interval):
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001 - a device that fell off the bus fails the step, not the recording
                self.event("sampling", f"devices cannot be read any more: {error}")
                return

    def sample(self) -> None:
        """Memory, energy, cost, time to the end and the comparison with the plan, as of now."""
        if not self._records():
            return
        at_s, memory = self._now_s(), list(self.devices.memory())
        for device, values in memory:
            self._writer.add(at_s, values, step=self.steps, device=device)
            for name, value in values.items():
                self.latest[name] = max(value, self.latest.get(name, 0.0))
            if not self._records():
                return
        joules = None if self._meter is None else self._meter.joules()
        total = {
            "elapsed_s": self._earlier["elapsed_s"] + self.elapsed_s,
            "energy_joules": None if joules is None else self._earlier["energy_joules"] + joules,
            "cost_usd": self.cost_usd,
            "tokens": self._tokens or None,
            "eta_s": self.eta_s,
        }
        total["plan_deviation_frac"] = self._deviation()
        self.add({name: float(value) for name, value in total.items() if value is not None}, at_s=at_s)

    def _deviation(self) -> float | None:
        """By how much the last steps take longer than expected, as a share; leaving the interval is an event."""
        if self.expected is None or self.steps - self._first_step < 2 * SETTLED or not self._recent:
            return None
        figures = self.expected.expected.figures
        seconds = fmean(s for s, _, _ in self._recent)
        tokens, wait_s = fmean(t for _, t, _ in self._recent), fmean(w for _, _, w in self._recent)
        rate = figures.get("tokens_per_s")
        if rate is not None and tokens > 0:  # of batches of another size the rate is what can be compared
            ends = tokens / rate.value, tokens / rate.high, tokens / rate.low
        elif (figure := figures.get("step_s")) is not None:
            ends = figure.value, figure.low, figure.high
        else:
            return None
        value, low, high = ends
        off = not low <= seconds <= high
        if off != self._off_plan:
            text = f"a step takes {format_seconds(seconds)}, expected {format_seconds(low)} to {format_seconds(high)}"
            wait = f"; {format_percent(wait_s / seconds)} of it waits for data" if wait_s > 0.05 * seconds else ""
            self.event("off_plan" if off else "on_plan", text + wait)
        self._off_plan = off
        return seconds / value - 1.0

    def _check_budget(self) -> None:
        """Alerts at shares of the budget, and an end agreed on by all ranks where it is used up."""
        elapsed_s = self.elapsed_s  # an alert takes time to write: what is used up later has one of its own
        if self.rank == 0:
            for text in self.budget.alerts(elapsed_s):
                self.event("budget", text)
        is_used = self.rank == 0 and self.budget.stops and self.budget.used_frac(elapsed_s) >= 1.0
        self._agreement.agree(self.steps, wants_end=is_used)

    @property
    def budget_text(self) -> str:
        """The spent part of the budget, for a message."""
        cost = self.cost_usd
        spent = format_seconds(self._earlier["elapsed_s"] + self.elapsed_s) + (
            "" if cost is None else f" and {format_usd(cost)}"
        )
        return f"the budget is used up after {self.steps:,} steps: {spent}"

    def end(self, status: RunStatus = "finished") -> None:
        """End the run and write the remaining values."""
        if self._ended or os.getpid() != self._pid:
            return
        self.open()
        self._stop_sampling.set()
        if self._clock is not None:
            try:
                self._write_known(wait=True)
            except Exception as error:  # noqa: BLE001 - a GPU that has failed has no last events
                self.event("sampling", f"the last steps cannot be timed: {error}")
        if self._records():
            self.sample()
        writer, self._ended = self._writer, True
        self.run = replace(self.run, status=status, ended_at_s=self._now_s())
        if writer is not None:
            writer.end(status, self._now_s())
        atexit.unregister(self._end_at_exit)

    def _end_at_exit(self) -> None:
        """The program ends and nobody has ended the run: by an exception, by a person, or by what its caller caught."""
        last = getattr(sys, "last_value", None)
        self.end("stopped" if last is None or isinstance(last, KeyboardInterrupt) else "failed")


def _recorded_run(store: str | Path | None, key: str) -> RecordedRun | None:
    """The run that goes on, with what it used up; None of an id that is not there yet, or where the store is away.

    Raises: UnknownNameError: there is no such run.
    """
    from flopwise.records.store import open_store  # noqa: PLC0415 - a database's libraries, of a run that goes on

    try:
        opened = open_store(store)
        run = opened.run(key)
        return RecordedRun(run=run, summaries=opened.summaries(run.run_id))
    except UnknownNameError:
        if not ID.fullmatch(key):
            raise
    except FlopwiseError as error:
        warnings.warn(f"flopwise: what run {key} used up so far is not known: {error}", RuntimeWarning, stacklevel=5)
    return None


def status_of(error: BaseException | None) -> RunStatus:
    """The status of a run whose loop was left by `error`."""
    if error is None:
        return "finished"
    return "stopped" if isinstance(error, KeyboardInterrupt | BudgetReachedError) else "failed"


def _versions() -> dict[str, str]:
    """Version by package, of those that are loaded."""
    versions = {}
    for name in PACKAGES:
        if name in sys.modules:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return versions | {"python": platform.python_version()}


def _number_soon(value: Any) -> Any:
    """A number, or a GPU's scalar on its way to the host, where `float` reads it once a later event has passed."""
    if value is None or isinstance(value, int | float):
        return value
    detached = value.detach() if hasattr(value, "detach") else value
    return detached.to("cpu", non_blocking=True) if getattr(detached, "is_cuda", False) else float(detached)
