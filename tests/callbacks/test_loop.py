"""A loop by hand: what is recorded of it, how it ends, and what it does not suffer from."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from read_back import SIZES, Recorded, busy

import flopwise
from flopwise.callbacks import BudgetReachedError, RecordingSpec, devices, record
from flopwise.callbacks import recorder as recorder_module
from flopwise.callbacks.budget import RunBudget
from flopwise.callbacks.devices import LocalDevices
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models import model_from_config
from flopwise.ops.flops import causal_forward_flops
from flopwise.records.store import open_store
from probed_cpu import DEVICE, NAME, cpu_probe

LLAMA = {"model_type": "llama", **SIZES}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_steps_tokens_flops_cost_and_time_to_the_end_are_those_of_the_loop(store: Path) -> None:
    with record(
        LLAMA, store=store, name="by hand", seq=128, peak="1e12", price_usd_per_hour=3600, total_steps=40, watts=100
    ) as run:
        began = time.perf_counter()
        for _ in range(20):
            busy(0.004)
            took = time.perf_counter() - began
            run.step(tokens=1024, loss=2.5)
        eta = run.eta_s
    saved = Recorded.of(store)
    assert (saved.run.name, saved.run.status, saved.run.settings["precision"]) == ("by hand", "finished", "bf16")
    steps = saved.values("step_s")
    assert saved.steps("step_s") == list(range(1, 21))
    elapsed = (saved.run.ended_at_s or 0) - saved.run.started_at_s
    assert took <= steps.sum() <= elapsed
    assert saved.values("tokens_per_s") == pytest.approx(1024 / steps)
    # 8 sequences of 128: thrice the forward pass
    flops = 3 * causal_forward_flops(model_from_config(LLAMA, name="tiny"), 8, 128)
    assert saved.values("model_flops_per_s") == pytest.approx(flops / steps)
    assert saved.values("mfu_frac") == pytest.approx(flops / steps / 1e12)
    assert saved.values("loss").tolist() == [2.5] * 20
    assert saved.values("tokens")[-1] == 20 * 1024
    assert took <= saved.values("cost_usd")[-1] <= elapsed  # a dollar a second
    assert 100 * took <= saved.values("energy_joules")[-1] <= 100 * elapsed
    assert eta == pytest.approx(20 * steps[4:].mean())  # the first steps do not count
    assert any("an estimate, 100 W (as given)" in text for text in saved.texts("basis"))


def test_memory_is_the_most_that_the_process_has_held(store: Path) -> None:
    with record(store=store) as run:
        run.step()
    peak = Recorded.of(store).values("peak_memory_bytes", "cpu")[-1]
    line = next(one for one in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if "VmHWM" in one)
    assert peak == pytest.approx(float(line.split()[1]) * 1024, rel=0.05)


class Tensor:
    """As much of a tensor as is asked of one: 50 million elements of 4 bytes."""

    requires_grad, grad = True, None

    def numel(self) -> int:
        return 50_000_000

    def element_size(self) -> int:
        return 4


class Module:
    """A module of one parameter, with its gradient, and one buffer: 600 MB."""

    def parameters(self) -> list[Tensor]:
        one = Tensor()
        one.grad = Tensor()  # type: ignore[assignment]  # stands in for torch's
        return [one]

    def buffers(self) -> list[Tensor]:
        return [Tensor()]


def test_what_the_process_held_before_is_recorded_without_the_model(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_resident_bytes", lambda: 1e9)
    with record(Module(), store=store, seq=8) as run:
        run.step()
    assert set(Recorded.of(store).values("untrained_memory_bytes", "cpu").tolist()) == {4e8}
    assert LocalDevices.of(load_facts(), subject="Llama-3.1-8B").untrained_bytes is None


def test_waiting_for_data_is_measured_apart(store: Path) -> None:
    def slow() -> Any:
        for _ in range(5):
            busy(0.02)
            yield 1

    with record(store=store) as run:
        for _ in run.data(slow()):
            busy(0.005)
            run.step()
    saved = Recorded.of(store)
    assert (saved.values("data_wait_s") >= 0.02).all()
    assert (saved.values("data_wait_s") < saved.values("step_s")).all()


def test_waiting_that_no_one_measured_is_not_zero(store: Path) -> None:
    with record(store=store) as run:
        for _ in range(3):
            run.step()
    saved = Recorded.of(store)
    assert saved.values("step_s").size == 3
    assert saved.values("data_wait_s").size == 0


def test_what_is_paused_is_no_part_of_a_step(store: Path) -> None:
    with record(store=store, total_steps=4) as run:
        run.step()
        began = time.perf_counter()
        with run.pause("evaluation"):
            busy(0.2)
        run.step()
        run.step()
        took = time.perf_counter() - began
    saved = Recorded.of(store)
    assert len(saved.values("step_s")) == 3
    assert saved.values("step_s")[1:].sum() <= took - 0.2
    assert len(saved.texts("evaluation")) == 1
    assert run.eta_s is not None
    assert run.eta_s > saved.values("step_s").mean()  # a quarter of it, and its share of evaluations


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "failed"), (KeyboardInterrupt(), "stopped"), (SystemExit(1), "failed")]
)
def test_an_exception_ends_the_run_by_its_kind(store: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), record(store=store) as run:  # noqa: PT012 - the loop is what raises
        run.step()
        raise error
    assert Recorded.of(store).run.status == status


def test_losses_that_are_no_numbers_and_spikes_of_gradients_are_events(store: Path) -> None:
    with record(store=store) as run:
        for number in range(12):
            run.step(loss=math.nan if number in (3, 4) else 1.0, grad_norm=60.0 if number == 9 else 1.0)
        run.loss_scale(65536.0)
        run.loss_scale(32768.0)
    saved = Recorded.of(store)
    assert saved.texts("not_finite") == ["loss is nan"]  # once for both
    assert len(saved.values("loss")) == 10
    assert saved.texts("grad_norm_spike") == ["gradient norm 60, 60.0 times its median 1"]
    assert saved.texts("loss_scale") == ["loss scale from 65536 to 32768"]


def test_a_budget_that_stops_raises_and_says_so_before(store: Path) -> None:
    steps = 0
    with (  # noqa: PT012 - the loop is what raises
        pytest.raises(BudgetReachedError, match="used up after"),
        record(store=store, price_usd_per_hour=3600, budget_usd=1.0, on_budget="stop") as run,
    ):
        for _ in range(1000):
            busy(0.005)
            run.step()
            steps += 1
    saved = Recorded.of(store)
    assert saved.run.status == "stopped"
    assert 0 < steps < 1000
    assert saved.values("cost_usd")[-1] >= 1.0
    assert saved.texts("budget")[-1].startswith("100 % of the budget is used up: $1.")


def test_a_budget_that_is_used_up_while_an_alert_is_written_still_has_its_own(store: Path) -> None:
    with (  # noqa: PT012 - the loop is what raises
        pytest.raises(BudgetReachedError),
        record(store=store, price_usd_per_hour=3600, budget_usd=0.5, on_budget="stop") as run,
    ):
        write = run.event

        def slowly(kind: str, text: str) -> None:
            write(kind, text)
            busy(0.1)  # 0.10 of the 0.50 US dollars

        run.event = slowly
        for _ in range(1000):
            busy(0.005)
            run.step()
    assert Recorded.of(store).texts("budget")[-1].startswith("100 % of the budget is used up: $0.")


def test_alerts_come_once_at_50_80_95_and_100_percent() -> None:
    budget = RunBudget(RecordingSpec(budget_usd=10, budget_hours=100), 1.0)
    shown = [(hours, text) for hours in (1, 5, 6, 8.1, 9.6, 10, 11) for text in budget.alerts(hours * 3600)]
    assert [(hours, text[:12]) for hours, text in shown] == [
        (5, "50 % of the "), (8.1, "80 % of the "), (9.6, "95 % of the "), (10, "100 % of the"),
    ]  # fmt: skip
    assert shown[0][1] == "50 % of the budget is used up: $5.00 of $10.00"
    both = RunBudget(RecordingSpec(budget_usd=10, budget_hours=2), 1.0)
    assert both.used_frac(3600) == 0.5  # the hours, not the dollars


def test_a_budget_of_hours_sets_a_flag_where_a_checkpoint_is_wanted(store: Path) -> None:
    with record(store=store, budget_hours=0.05 / 3600, on_budget="checkpoint") as run:
        while not run.should_stop:
            busy(0.005)
            run.step()
    assert Recorded.of(store).run.status == "stopped"


@pytest.mark.parametrize(("what", "count"), [("warn", 4), ("ignore", 0)])
def test_a_budget_that_does_not_stop_lets_the_loop_go_on(store: Path, what: str, count: int) -> None:
    with record(store=store, price_usd_per_hour=3600, budget_usd=0.05, on_budget=what) as run:
        for _ in range(30):
            busy(0.003)
            run.step()
    saved = Recorded.of(store)
    assert (saved.run.status, run.steps) == ("finished", 30)
    assert (len(saved.texts("budget")) > 0) == (count > 0)


def test_money_without_a_price_is_said_not_to_be_watched(store: Path) -> None:
    with pytest.warns(RuntimeWarning, match="price_usd_per_hour"), record(store=store, budget_usd=5):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_budget": "stop"}, "needs a budget"),
        ({"on_budget": "explode"}, "explode"),
        ({"budjet_usd": 3}, "budget_usd"),
        ({"budget_usd": -1}, "budget usd"),
        ({"gpu": "h1000000"}, "h1000000"),
        ({"plan": "nowhere.json"}, "nowhere.json"),
        ({"question": {"gpu": "h100"}}, "model is missing"),
        ({"plan": "plan.json", "question": {"model": "gpt2"}}, "give one of them"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_the_training(
    store: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message), record(store=store, **options):
        raise AssertionError


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(SpecError, match="int is no model: give a module of PyTorch"), record(8):  # fmt: skip
        pass


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(UnknownNameError), record("no-such-model-7b"):
        raise AssertionError


class FailingWriter:
    """Raises whatever is asked of it."""

    def __init__(self, *_: Any) -> None:
        self.calls = 0

    def add(self, *_: Any, **__: Any) -> None:
        self.calls += 1
        raise OSError("disk on fire")

    event = end = add


def test_a_store_that_fails_does_not_stop_the_loop(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwise.records.writer.Writer", FailingWriter)
    with pytest.warns(RuntimeWarning, match="ends here: disk on fire"), record(store=store) as run:  # noqa: PT031
        for _ in range(3):
            run.step(loss=1.0)
    assert run.steps == 3

    def refused(*_: Any) -> None:
        raise SpecError("not a store")

    monkeypatch.setattr("flopwise.records.writer.Writer", refused)
    with pytest.warns(RuntimeWarning, match="not recorded: not a store"), record(store=store) as run:
        run.step(loss=1.0)
    assert run.latest["loss"] == 1.0


def test_a_folder_in_the_place_of_the_store_does_not_stop_the_loop(tmp_path: Path) -> None:
    began = time.perf_counter()
    with record(store=tmp_path) as run:
        assert time.perf_counter() - began < recorder_module.OPEN_WAIT_S, "one try is waited for"
        run.step(loss=1.0)
        run._writer.end = lambda *_: None  # waits for the store to come back
    assert run.steps == 1


def test_the_store_is_open_before_the_first_step_so_that_no_step_waits_for_its_libraries(store: Path) -> None:
    with record(LLAMA, store=store) as run:
        opened = open_store(store, create=False)  # raises where nothing was written yet
        assert opened.run(run.run_id).status == "running"
        assert run.steps == 0


def test_the_copy_in_a_process_that_is_forked_off_writes_nothing(store: Path) -> None:
    with record(store=store) as run:
        run.step()
        child = os.fork()
        if not child:
            run.step(loss=99.0)
            run.event("other", "from the copy")
            run.end("failed")
            os._exit(0)
        os.waitpid(child, 0)
        run.step()
    saved = Recorded.of(store)
    assert (saved.run.status, saved.steps("step_s"), saved.texts("other")) == ("finished", [1, 2], [])


def test_a_run_goes_on_in_the_same_one_or_in_one_of_its_own(store: Path) -> None:
    with record(store=store) as first:
        first.step()
    with record(store=store, resume=first.run_id) as second:
        second.begin_steps(1)
        second.step()
    assert second.run_id == first.run_id
    saved = Recorded.of(store)
    assert saved.steps("step_s") == [1, 2]
    assert saved.texts("resumed") == [f"continues run {first.run_id}"]
    assert saved.run.status == "finished"


def test_a_run_that_goes_on_is_found_by_its_name_with_all_that_it_used_up(store: Path) -> None:
    options: dict[str, Any] = {"store": store, "price_usd_per_hour": 3600, "watts": 100}
    with record(name="long run", **options) as first:
        for _ in range(5):
            busy(0.04)
            first.step(tokens=100)
    spent = Recorded.of(store).values("cost_usd")[-1]
    assert spent > 0.2
    with record(resume="long run", budget_usd=spent + 1.0, total_tokens=1e4, **options) as second:
        second.begin_steps(5)
        second.step(tokens=100)
        second._writer.flush()
        midway = Recorded.of(store)
        assert (midway.run.run_id, midway.run.status, midway.run.ended_at_s) == (first.run_id, "running", None)
        busy(0.05)
        second.step(tokens=100)
        assert second.cost_usd is not None
        assert second.cost_usd > spent
        assert second.budget.used_frac(second.elapsed_s) > spent / (spent + 1.0)
    saved = Recorded.of(store)
    assert saved.run.name == "long run"
    assert saved.run.started_at_s == second.run.started_at_s == first.run.started_at_s
    assert saved.texts("resumed") == [f"continues run {first.run_id}"]
    assert saved.values("tokens")[-1] == 700
    for metric in ("cost_usd", "energy_joules", "elapsed_s", "tokens"):
        values = saved.values(metric)
        assert (values[1:] >= values[:-1]).all(), metric
    # what is over before the first step ends the run with it
    with (
        pytest.raises(BudgetReachedError),
        record(resume=first.run_id[:8], budget_usd=spent, on_budget="stop", **options) as third,
    ):
        third.step()
    assert third.steps == 1
    assert Recorded.of(store).run.status == "stopped"
    assert len(Recorded.of(store).store.runs()) == 1


def test_hours_of_a_budget_go_on_where_there_is_no_price(store: Path) -> None:
    with record(store=store, name="hours") as first:
        first.step()
        busy(0.2)
    with record(store=store, resume="hours", budget_hours=0.2 / 3600, on_budget="checkpoint") as second:
        assert not second.should_stop
        second.step()
        assert second.should_stop


def test_a_run_that_is_not_there_cannot_go_on_but_an_id_may_be_new(store: Path) -> None:
    with record(store=store, name="mine"):
        pass
    with pytest.raises(UnknownNameError, match="mine"), record(store=store, resume="nine"):
        raise AssertionError
    with record(store=store, resume="ab" * 16) as run:
        run.step()
    assert run.run_id == "ab" * 16
    assert Recorded.of(store, "ab" * 16).texts("resumed") == []


def test_a_run_goes_on_where_its_store_is_away(tmp_path: Path) -> None:
    warned = pytest.warns(RuntimeWarning, match="used up so far is not known")
    with warned, record(store=tmp_path, resume="x") as run:
        run.step(loss=1.0)
        run._writer.end = lambda *_: None  # waits for the store to come back
    assert run.steps == 1


def test_ranks_but_the_first_record_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with record(store=store) as run:
        run.step()
    assert (run.gpus, store.exists()) == (2, False)


def test_a_question_says_what_is_expected_and_leaving_it_is_an_event(store: Path) -> None:
    question: dict[str, Any] = {
        "model": "Llama-3.1-8B", "gpu": "h100", "gpus": 8, "seq": "4k", "global_batch": 16, "tokens": "1G",
    }  # fmt: skip
    answer = flopwise.train(**question)
    step = answer.estimate.step_s
    with record(store=store, question=question) as run:
        for _ in range(20):
            busy(0.001)
            run.step()
        run.sample()
    saved = Recorded.of(store)
    expected = saved.run.expected
    assert expected is not None
    assert expected.figures["step_s"].value == pytest.approx(step)
    assert expected.figures["step_s"].low < step < expected.figures["step_s"].high
    assert sum(expected.terms.values()) == pytest.approx(step)
    planned = answer.estimate.run
    assert planned is not None
    assert planned.energy_joules is not None
    # what is recorded is of the GPUs alone: no start, and not the hosts and the cooling of the plan
    gpus_joules = expected.figures["energy_joules"].value
    assert 0.4 * planned.seconds * 8 * 700 < gpus_joules < planned.seconds * 8 * 700
    assert gpus_joules < planned.energy_joules - planned.start_joules
    assert planned.cost_usd is not None
    assert planned.start_usd is not None
    assert expected.figures["cost_usd"].value == pytest.approx(planned.cost_usd - planned.start_usd)
    assert expected.question.startswith("flopwise train Llama-3.1-8B --gpu h100")
    assert saved.run.model == "Llama-3.1-8B"
    assert (saved.run.settings["seq"], saved.run.settings["global_batch"]) == (4096, 16)
    assert saved.values("plan_deviation_frac")[-1] < -0.9  # a millisecond
    assert len(saved.texts("off_plan")) == 1
    assert saved.run.price_usd_per_hour == pytest.approx(8 * (answer.estimate.job.cluster.usd_per_gpu_hour or 0))


def test_the_profile_of_a_question_says_what_the_cpu_reaches(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 GFLOP/s in bf16, by its probe: 1e9 operations in a step of over 10 ms are less than half of that."""
    cpu_probe().write(tmp_path / "probe.json")
    flopwise.calibrate(tmp_path / "probe.json", name="mine")
    monkeypatch.setattr(devices, "cpu_name", lambda: DEVICE.name)
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    question = {"model": "gpt2", "gpu": "here", "calibration": "mine", "seq": 64, "global_batch": 1}
    with record(store=store, question=question) as run:
        busy(0.01)
        run.step(flops=1e9)
    saved = Recorded.of(store)
    assert saved.run.gpu == NAME
    assert saved.values("mfu_frac") == pytest.approx(1e9 / saved.values("step_s") / 200e9)
    del question["calibration"]
    with record(store=store, calibration="mine", question=question) as other:  # the callback's holds for the question
        pass
    assert other.run.expected is not None
    assert saved.run.expected is not None
    assert other.run.expected.figures == saved.run.expected.figures


def test_a_plan_that_was_written_says_what_is_expected(store: Path, tmp_path: Path) -> None:
    from flopwise.api.plan import plan
    from flopwise.search.answer import to_json

    answer = plan({
        "model": "Llama-3.1-8B", "task": "finetune", "method": {"kind": "lora", "rank": 16},
        "data": {"tokens": "100M"}, "constraints": {"gpus": ["h100"], "max_gpus": 8},
    })  # fmt: skip
    (tmp_path / "plan.json").write_bytes(to_json(answer))
    with record(store=store, plan=tmp_path / "plan.json") as run:
        run.step()
    saved = Recorded.of(store).run
    chosen = answer.plans[0]
    assert saved.expected is not None
    assert saved.expected.figures["step_s"].value == pytest.approx(chosen.figures["step_s"])
    assert saved.expected.figures["peak_memory_bytes"].value == pytest.approx(chosen.memory_bytes, rel=0.01)
    assert saved.expected.question == chosen.reproduce
    assert (saved.task, saved.price_usd_per_hour) == ("finetune", chosen.usd_per_hour)
    assert run.latest["tokens"] == chosen.layout["global_batch"] * chosen.layout["seq_len"]
    assert run.eta_s is not None
    with pytest.raises(SpecError, match="no plan 999"), record(plan=tmp_path / "plan.json", plan_rank=999):
        raise AssertionError


def test_the_price_of_a_gpu_is_the_catalogs_where_none_is_given(store: Path) -> None:
    with record(store=store, gpu="h100", gpus=8) as run:
        run.step(flops=1e15)
    answer = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=8, seq=4096)
    read = Recorded.of(store)
    peak = answer.estimate.job.cluster.rates.peak_flops_per_s("bf16")
    assert read.values("mfu_frac") == pytest.approx(1e15 / read.values("step_s") / (8 * peak))
    saved = read.run
    assert saved.price_usd_per_hour == pytest.approx(8 * (answer.estimate.job.cluster.usd_per_gpu_hour or 0))


def test_a_program_that_ends_by_an_exception_leaves_a_failed_run(store: Path) -> None:
    code = f"""
from flopwise.callbacks import TrainingRecorder
from flopwise.callbacks.begin import checked_options, training_recorder
run = training_recorder(TrainingRecorder, None, *checked_options({{}}), store={str(store)!r})
run.step()
raise ValueError("no")
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (ended.returncode, "ValueError: no" in ended.stderr) == (1, True)
    assert Recorded.of(store).run.status == "failed"


def test_importing_the_package_loads_no_library_and_a_missing_one_is_named() -> None:
    code = """
import json, sys
import flopwise.callbacks as callbacks
loaded = [name for name in ("torch", "transformers", "lightning", "sqlalchemy", "numpy") if name in sys.modules]
for name in ("transformers", "lightning", "pytorch_lightning"):
    sys.modules[name] = None
said = {}
for name in ("FlopwiseCallback", "FlopwiseLightningCallback"):
    try:
        getattr(callbacks, name)
    except ValueError as error:
        said[name] = str(error)
try:
    callbacks.find_batch_size(object(), None)
except ValueError as error:
    said["find_batch_size"] = str(error)
print(json.dumps([loaded, said]))
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded, said = json.loads(shown)
    assert loaded == []
    assert all("pip install" in text for text in said.values())
    assert len(said) == 3
    with pytest.raises(AttributeError, match="it has record"):
        flopwise.callbacks.nothing  # noqa: B018


def test_sampling_that_fails_is_said_once_and_the_loop_goes_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fallen(_: Any) -> None:
        raise RuntimeError("GPU is lost")

    with monkeypatch.context() as patch, record(store=store, interval=0.01) as run:
        patch.setattr(recorder_module.TrainingRecorder, "sample", fallen)
        for thread in threading.enumerate():
            if thread.name == "flopwise-sampler":
                thread.join(30)
        run.step()
        patch.undo()
    assert Recorded.of(store).texts("sampling") == ["devices cannot be read any more: GPU is lost"]
