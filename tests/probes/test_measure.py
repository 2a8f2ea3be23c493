"""Rates are work over time, for each kind; what fails is an entry, and the others go on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_device as fake
import pytest
from fake_device import FakeDevice

from flopwise.probes import measure
from flopwise.probes.file import Measurement, Probe
from flopwise.probes.kinds import KINDS
from flopwise.probes.load import Load
from flopwise.probes.measure import ProbeRunner
from flopwise.probes.timing import Stopwatch, TooLongError

DEVICE_KINDS = [name for name, kind in KINDS.items() if kind.scope == "device"]


def _probe(device: FakeDevice, *names: str, quick: bool = True, more: tuple[FakeDevice, ...] = ()) -> Probe:
    runner = ProbeRunner(Path(), quick=quick, progress=lambda *_: None, clock=device.clock)
    return runner.probe([device, *more], device, names or DEVICE_KINDS)


def _rate(one: Measurement) -> float:
    """What the fake device does, by the name of the measurement."""
    first, _, what = one.name.partition("_")
    known = {"elementwise": fake.ELEMENTWISE, "launch": fake.LAUNCH_S, "matmul": fake.FLOPS.get(one.dtype or "", 0.0)}
    if first in known:
        return known[first]
    if first in {"memory", "attention"}:
        return {**fake.MOVED, **fake.ATTENTION}[what]
    ends = {"host": ("cpu", "cuda:0"), "device": ("cuda:0", "cpu" if what == "to_host" else "cuda:1")}[first]
    return fake.TRANSFERS[ends] * (1 if one.shape.get("pinned", 1) else 0.5)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", DEVICE_KINDS)
def test_a_rate_is_the_work_counted_by_hand_over_the_time(name: str, quick: bool) -> None:
    found = _probe(FakeDevice(), name, quick=quick).measurements
    measured = [one for one in found if one.failure is None]
    assert len(measured) >= (2 if name == "elementwise" and quick else 3)
    assert all(one.failure and one.failure.startswith("left out: one repetition") for one in found if one.failure)
    for one in measured:
        assert one.value is not None
        assert one.value == pytest.approx(_rate(one), rel=1e-6), one
        assert one.low == pytest.approx(one.value)
        assert one.high == pytest.approx(one.value)
        assert one.best == pytest.approx(one.value)
        assert one.repeats >= 3
        assert one.seconds == pytest.approx(one.work * one.value if one.unit == "s" else one.work / one.value)


def test_few_rows_pass_more_weights_than_a_processors_caches_hold() -> None:
    """Twice 40 MiB in 4 and in 2 bytes of 1024 x 1024: 20 and 40 weights; 2 rows operations for 4 or 2 bytes."""
    device = FakeDevice(kind="cpu")
    device.device = replace(device.device, cache_bytes={"L2": 1 << 20, "L3": 40 << 20})
    found = [one for one in _probe(device, "matmul", quick=False).measurements if one.name == "weights_read"]
    assert {(one.dtype, one.shape["m"]) for one in found} == {(d, m) for d in ("fp32", "bf16") for m in (1, 8, 32)}
    for one in found:
        assert one.shape["weights"] == {"fp32": 20, "bf16": 40}[one.dtype or ""]
        assert one.work == 80 << 20
        moved_per_flop = {"fp32": 4, "bf16": 2}[one.dtype or ""] / (2 * one.shape["m"])
        assert one.value == pytest.approx(fake.FLOPS[one.dtype or ""] * moved_per_flop)
    assert all(one.name == "matmul" for one in _probe(FakeDevice(), "matmul").measurements), "of a card: in its shapes"


def test_products_of_the_first_dtype_come_before_what_takes_long() -> None:
    """Weights of hundreds of megabytes wait until the rate of products is known; other dtypes come last."""
    device = FakeDevice(kind="cpu")
    order = [(one.name, one.dtype) for one in _probe(device, "matmul").measurements]
    (first, second), names = device.dtypes[:2], list(dict.fromkeys(order))
    assert (names[0], names[-1]) == (("matmul", first), ("matmul", second))
    assert {name for name, _ in names[1:-1]} == {"weights_read"}


def test_the_work_of_each_kind_by_hand() -> None:
    found = {(one.name, one.dtype, *one.shape.values()): one.work for one in _probe(FakeDevice()).measurements}
    assert found["matmul", "bf16", 512, 256, 256] == 2 * 512 * 256 * 256 == 67_108_864
    assert found["memory_copy", None, 1 << 22] == 4_194_304
    # 2 sequences x 8 heads x 512 x 513 / 2 pairs x 4 x 64
    assert found["attention_prefill", "bf16", 2, 8, 8, 512, 64] == 2 * 8 * 131_328 * 256 == 537_919_488
    assert found["attention_training", "bf16", 2, 8, 8, 512, 64] == 537_919_488 * 3.5
    # keys and values of 32 sequences x 32 heads x 4,096 tokens x 128, two bytes each
    assert found["attention_decode", "bf16", 32, 32, 32, 4096, 128] == 2 * 32 * 32 * 4096 * 128 * 2 == 2_147_483_648
    assert found["elementwise", "fp32", 1 << 24, 10] == 10 * 4 * 16_777_216
    assert found["elementwise_training", "fp32", 1 << 24, 23] == 23 * 4 * 16_777_216
    assert found["launch_queued", None] == 20
    assert found["launch_waited", None] == 1
    assert found["launch_autograd", None] == 40
    assert found["host_to_device", None, 1 << 20, 1] == found["device_to_device", None, 1 << 20, 1] == 1_048_576


def test_waiting_is_a_part_of_an_operation_that_is_waited_for() -> None:
    device = FakeDevice()

    def wait() -> None:
        device.time[0] += fake.WAIT_S

    device.wait = wait  # type: ignore[method-assign]
    probe = _probe(device, "launch")
    one = fake.LAUNCH_S + fake.WAIT_S
    waited, queued = probe.best("launch_waited", "cuda:0"), probe.best("launch_queued", "cuda:0")
    assert waited is not None
    assert queued is not None
    assert one < waited < one * 1.1  # the sample's own end is waited for once more
    assert fake.LAUNCH_S < queued < fake.LAUNCH_S * 1.1


@pytest.mark.parametrize(("quick", "most"), [(True, 18.0), (False, 118.0)])
@pytest.mark.parametrize("slower", [2.0, 10.0, 30.0, 100.0])
def test_a_probe_ends_in_time_on_fast_and_slow_devices(quick: bool, most: float, slower: float) -> None:
    device = FakeDevice(slower)
    beside = FakeDevice(slower, kind="cpu", beside=device)
    probe = _probe(device, quick=quick, more=(beside,))
    assert {one.id for one in probe.devices} == {"cuda:0", "cpu"}
    assert probe.seconds == device.clock() < most
    values = sum(one.value is not None for one in probe.measurements)
    assert values > len(probe.measurements) / 2


@pytest.mark.parametrize(("quick", "limit"), [(True, measure.QUICK_LIMIT_S), (False, measure.LIMIT_S)])
def test_data_that_take_long_to_make_cost_later_kinds_their_time_and_not_the_probe(quick: bool, limit: float) -> None:
    """A loaded machine: everything 60 times slower, 0.3 s before each operation, 4 s to load the library."""

    class Loaded(FakeDevice):
        def _takes(self, name: str, work: float, rate: float) -> Callable[[], None]:
            self.time[0] += 0.3
            return super()._takes(name, work, rate)

    device = Loaded(60.0, kind="cpu")
    names = [name for name in DEVICE_KINDS if name != "transfers"]
    runner = ProbeRunner(Path(), quick=quick, progress=lambda *_: None, clock=device.clock, loading_s=4.0)
    probe = runner.probe([device], device, names)
    assert probe.seconds + 4.0 < limit + 1.0, "an operation that was begun is ended"
    measured = {one.name for one in probe.measurements if one.value is not None}
    assert measured >= {"matmul", "memory_copy", "attention_prefill"}
    unmeasured = {one.failure for one in probe.measurements if one.value is None}
    assert all((one or "").startswith("left out: ") for one in unmeasured)


def test_however_long_a_library_takes_to_load_something_is_measured() -> None:
    """A quick probe has 4 s then, in which products of a machine that is 300 times slower take all."""
    device = FakeDevice(300.0, kind="cpu")
    runner = ProbeRunner(Path(), quick=True, progress=lambda *_: None, clock=device.clock, loading_s=60.0)
    probe = runner.probe([device], device, ["launch", "matmul", "memory", "attention", "elementwise"])
    assert probe.best("launch_queued", "cpu") == pytest.approx(300 * fake.LAUNCH_S)
    assert 0 < probe.seconds < measure.QUICK_LEAST_S + 1.0


def test_what_a_library_loads_with_its_first_operation_is_no_time_of_an_operation() -> None:
    """Three seconds, as on an overloaded machine: more than 30 times what launches have in a quick probe."""
    device, loads = FakeDevice(), [3.0]

    def load(name: str, _work: float) -> None:
        device.time[0] += loads.pop() if loads and name == "launch" else 0.0

    device.fault = load
    runner = ProbeRunner(Path(), quick=True, progress=lambda *_: None, clock=device.clock)
    made = runner.probe([device], device, ["launch"])
    assert [one.failure for one in made.measurements] == [None] * 3
    assert runner.loading_s == pytest.approx(3.0, abs=1e-4)


def test_a_kind_that_comes_when_the_time_is_over_is_said() -> None:
    class Stuck(FakeDevice):
        def small_operation(self, count: int, *, backward: bool) -> Callable[[], None]:
            self.time[0] += 30.0
            return super().small_operation(count, backward=backward)

    device = Stuck()
    probe = _probe(device, "launch", "memory")
    assert "memory bandwidth: not measured, the time limit of the probe is used up" in probe.notes


def test_the_time_of_a_kind_shrinks_with_what_earlier_ones_took() -> None:
    """Products have 4 s, which take 1.2 times as long; an operation's fixed time has 0.4 s, messages 1.2 s."""
    runner = ProbeRunner(Path(), quick=True, progress=lambda *_: None, clock=lambda: 0.0)
    runner._end = 4.8
    device = FakeDevice()
    assert runner._share_frac([(device, "matmul")]) == pytest.approx(4.8 / (1.2 * 4.0))
    runner._end = 2.4
    assert runner._share_frac([(device, "matmul")]) == pytest.approx(0.5)
    assert runner._share_frac([(device, "launch")]) == 1.0
    runner._end = 2.5 + 0.72
    assert runner._share_frac([(device, "collectives")]) == pytest.approx(0.5), "its processes take 2.5 s to start"


def test_large_operations_are_left_out_of_a_slow_device() -> None:
    device = FakeDevice(200.0)  # 5 GFLOP/s in fp32
    failed = [one for one in _probe(device, "matmul", quick=False).measurements if one.failure]
    assert any(one.shape["m"] == 8192 for one in failed)
    assert all((one.failure or "").startswith("left out: ") for one in failed)
    largest = max(work for name, work in device.done if name == "matmul")
    assert largest < 2 * 8192**3  # it was not even tried


def test_an_operation_that_fails_is_an_entry_and_the_others_go_on() -> None:
    def out_of_memory(name: str, work: float) -> None:
        if name == "matmul" and work > 1e10:
            raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")

    device = FakeDevice()
    device.fault = out_of_memory
    probe = _probe(device, "matmul", "launch")
    failed = [one for one in probe.measurements if one.failure]
    assert {one.shape["m"] for one in failed} == {2048}
    assert {one.failure for one in failed} == {"out of memory: CUDA out of memory. Tried to allocate 20 GiB"}
    assert probe.best("launch_queued", "cuda:0") == pytest.approx(fake.LAUNCH_S)
    assert not any("stopped answering" in note for note in probe.notes)


def test_a_device_that_falls_out_is_said_once_and_the_others_are_measured() -> None:
    device = FakeDevice()
    beside = FakeDevice(kind="cpu", beside=device)

    def lost(name: str, _: float) -> None:
        if name != "matmul":
            raise RuntimeError("CUDA error: GPU is lost")

    device.fault = lost
    probe = _probe(device, "matmul", "memory", "launch", more=(beside,))
    assert probe.best("matmul", "cuda:0") is not None
    reasons = {one.failure for one in probe.measurements if (one.name[:6], one.device) == ("memory", "cuda:0")}
    assert reasons == {"CUDA error: GPU is lost"}
    notes = [note for note in probe.notes if note.startswith("cuda:0 stopped answering (CUDA error: GPU is lost)")]
    assert len(notes) == 1


def test_what_does_not_fit_is_not_tried() -> None:
    device = FakeDevice(free=float(1 << 26))
    failed = [one for one in _probe(device, "memory").measurements if one.failure]
    assert {one.shape["bytes"] for one in failed} == {1 << 28}
    assert "out of memory: needs 256 MiB of memory, and 64.0 MiB are free" in (failed[0].failure or "")


def test_statistics_of_uneven_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    monkeypatch.setattr(Stopwatch, "samples", lambda *_: list(seconds))
    one = _probe(FakeDevice(), "matmul").measurements[0]
    assert (one.value, one.best, one.low, one.high) == (one.work / 6, one.work / 1, one.work / 10, one.work / 2)
    time = next(m for m in _probe(FakeDevice(), "launch").measurements if m.name == "launch_queued")
    assert (time.value, time.best, time.low, time.high) == pytest.approx((6 / 20, 1 / 20, 2 / 20, 10 / 20))


def test_both_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([[1.0] * 3, [3.0] * 5])
    monkeypatch.setattr(Stopwatch, "samples", lambda *_: next(turns, [2.0] * 3))
    one = _probe(FakeDevice(), "launch", quick=False).measurements[0]
    assert one.repeats == 6  # of both turns, the second after the other operations
    assert one.value == pytest.approx(1.5 / 20 + 0.0) or one.value == pytest.approx(2.0 / 20)


def test_a_stopwatch_repeats_short_operations_within_a_sample() -> None:
    device = FakeDevice()
    watch = Stopwatch(device.clock, device.wait, 0.1)
    samples = watch.samples(device.small_operation(1, backward=False))
    assert samples == pytest.approx([fake.LAUNCH_S] * len(samples))
    assert 50 <= len(samples) <= 200
    assert device.clock() < 0.2
    with pytest.raises(TooLongError, match="about 2 s"):
        watch.samples(device.small_operation(1_000_000, backward=False))


def test_the_first_repetition_may_take_longer() -> None:
    times = iter([2.0])

    def run() -> None:
        device.time[0] += next(times, 0.01)

    device = FakeDevice()
    assert max(Stopwatch(device.clock, device.wait, 0.1).samples(run)) == pytest.approx(0.01)


def test_others_at_work_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1, 10_000))

    def now(_: Any) -> Load:  # each second others use a half of 2 cores, and this process 0.9 of one
        second = next(moments)
        return Load(second, 1.9 * second, 0.9 * second, 3 * second, 0.8)

    monkeypatch.setattr(Load, "now", classmethod(now))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    probe = _probe(FakeDevice(), "launch")
    assert [one.others_frac for one in probe.measurements] == pytest.approx([0.5] * 3)
    assert {one.involuntary_switches for one in probe.measurements} == {3}
    assert "0.8 processes per core" in probe.notes[0]
    busy = "3 of 3 figures were measured while other processes used more than 10 % of the cores (at most 50 %)"
    assert busy in probe.notes[1]


def test_a_quiet_machine_is_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Load, "now", classmethod(lambda _: Load(0.0, None, 0.0, None, None)))
    probe = _probe(FakeDevice(), "launch")
    assert probe.notes == ()
    assert probe.measurements[0].others_frac is None


def test_a_moment_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr("flopwise.probes.load.STAT", stat)
    stat.write_text("cpu  100 20 30 9999 8888 4 6 40 777 0\ncpu0 1 2 3\n")
    ticks = 100 + 20 + 30 + 4 + 6 + 40  # neither idle nor waiting; guests are in user's
    busy = Load.now().busy_s
    assert busy is not None
    assert busy == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"))
    stat.write_text("damaged")
    assert Load.now().busy_s is None


def test_progress_goes_up_to_its_end() -> None:
    told: list[tuple[float, float, str]] = []
    device = FakeDevice()
    ProbeRunner(Path(), quick=True, progress=lambda *a: told.append(a), clock=device.clock).probe(
        [device], device, ["matmul", "launch"]
    )
    done = [at for at, _, _ in told]
    assert done == sorted(done)
    assert {total for _, total, _ in told} == {KINDS["matmul"].quick_s + KINDS["launch"].quick_s}
    assert done[-1] < told[-1][1]
    assert told[0][2] == "cuda:0: matrix products"


def test_kinds_share_the_time_of_a_probe() -> None:
    assert sum(kind.seconds for kind in KINDS.values()) <= measure.MOST_S + 5
    assert sum(kind.quick_s for kind in KINDS.values()) <= measure.QUICK_MOST_S + 1
