"""A real training on the CPU with the Trainer of transformers, against measurements of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from read_back import SIZES, Recorded

from libraries import needs

pytestmark = [
    pytest.mark.oracle, pytest.mark.filterwarnings("ignore"), needs("torch", "transformers", "accelerate"),
]  # fmt: skip

SEQ, MICRO, ACCUMULATE, PEAK = 64, 4, 2, 1e11


def model(kind: str = "llama") -> Any:
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    if kind == "bert":
        return BertForMaskedLM(BertConfig(**SIZES, attn_implementation="eager"))
    return LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="eager"))


def data(count: int = 512) -> list[dict[str, Any]]:
    import torch

    torch.manual_seed(0)
    rows = torch.randint(1, SIZES["vocab_size"], (count, SEQ))
    return [{"input_ids": row, "labels": row} for row in rows]


def arguments(folder: Path, **changes: Any) -> Any:
    from transformers import TrainingArguments

    usual = {
        "output_dir": str(folder / "out"), "max_steps": 12, "per_device_train_batch_size": MICRO, "use_cpu": True,
        "gradient_accumulation_steps": ACCUMULATE, "logging_steps": 4, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(**{**usual, **changes})


def trained(folder: Path, callback: Any, net: Any = None, callbacks: tuple[Any, ...] = (), **changes: Any) -> Any:
    from transformers import Trainer

    trainer = Trainer(
        model=net or model(), args=arguments(folder, **changes), train_dataset=data(), eval_dataset=data(16),
        callbacks=[callback, *callbacks],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=changes.get("resume_from_checkpoint"))
    return trainer


def test_a_checkpoint_keeps_no_address_of_the_store() -> None:
    from flopwise.callbacks import FlopwiseCallback

    callback = FlopwiseCallback(store="postgresql://me:secret@host/runs", name="mine")
    kept = callback.state()
    assert "secret" not in repr(kept)
    assert kept["args"]["name"] == "mine"


def test_mfu_memory_steps_and_time_to_the_end_agree_with_measurements_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that the passes of the model move: the first four steps take five times as long as the others."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import TrainerCallback

    from flopwise.callbacks import FlopwiseCallback

    first_s, pass_s, passes = 0.25, 0.05, 0

    class ByHand(TrainerCallback):  # type: ignore[misc]
        """Notes the time to the end after each step."""

        def __init__(self) -> None:
            self.etas: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            assert callback.run is not None
            self.etas.append(callback.run.eta_s or 0.0)

    def run_pass(*_: Any) -> None:
        nonlocal passes
        passes += 1

    def now_s() -> float:
        slow = min(passes, 4 * ACCUMULATE)
        return 1000.0 + slow * first_s + (passes - slow) * pass_s

    callback = FlopwiseCallback(store=tmp_path / "runs.db", peak=PEAK, name="tiny", price_usd_per_hour=2.0)
    net, hand = model("bert"), ByHand()
    rows = data(MICRO)
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
    with FlopCounterMode(display=False) as counter:
        net(**batch).loss.backward()
    net.zero_grad()
    net.register_forward_pre_hook(run_pass)
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", now_s)
        trained(tmp_path, callback, net, (hand,), max_steps=30)
    saved = Recorded.of(tmp_path / "runs.db")
    assert (saved.run.status, saved.run.name, saved.run.gpus) == ("finished", "tiny", 1)
    known = {"micro_batch": MICRO, "global_batch": MICRO * ACCUMULATE, "precision": "fp32", "seq": SEQ}
    assert known.items() <= dict(saved.run.settings).items()
    steps = saved.values("step_s")
    assert steps == pytest.approx([ACCUMULATE * first_s] * 4 + [ACCUMULATE * pass_s] * 26)
    # what PyTorch counts of a micro-batch, over the time of the step by hand
    mfu = counter.get_total_flops() / pass_s / PEAK
    assert saved.values("mfu_frac")[4:] == pytest.approx([mfu] * 26, rel=0.03)
    assert saved.values("tokens")[-1] == 30 * MICRO * ACCUMULATE * SEQ
    line = next(one for one in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if "VmHWM" in one)
    assert saved.values("peak_memory_bytes", "cpu")[-1] == pytest.approx(float(line.split()[1]) * 1024, rel=0.02)
    # after half of the run: as many steps as are left, at the rate of those from the fifth on
    assert hand.etas[14] == pytest.approx(15 * ACCUMULATE * pass_s)
    assert len(saved.values("loss")) == 7
    assert "layer by layer" in saved.texts("basis")[0]


def test_evaluations_and_checkpoints_are_no_steps(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from flopwise.callbacks import FlopwiseCallback

    class SlowEvaluation(TrainerCallback):  # type: ignore[misc]
        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            time.sleep(0.3)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.monotonic())

    ends: list[float] = []
    path = tmp_path / "runs.db"
    trained(
        tmp_path, FlopwiseCallback(store=path), callbacks=(SlowEvaluation(),), eval_strategy="steps", eval_steps=4,
        save_strategy="steps", save_steps=4,
    )  # fmt: skip
    saved = Recorded.of(path)
    assert saved.steps("step_s") == list(range(1, 13))
    assert len(saved.texts("evaluation")) == len(saved.texts("checkpoint")) == 3
    assert len(saved.values("eval_loss")) == 3
    # between the first step and the last two evaluations of two batches slept 0.3 s for each
    assert saved.values("step_s")[1:].sum() <= ends[-1] - ends[0] - 2 * 2 * 0.3


def test_a_budget_saves_a_checkpoint_and_stops_and_the_next_run_is_linked(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseCallback

    path = tmp_path / "runs.db"
    callback = FlopwiseCallback(store=path, budget_hours=0.3 / 3600, on_budget="checkpoint")
    trainer = trained(tmp_path, callback, max_steps=10_000)
    stopped_at = trainer.state.global_step
    assert 0 < stopped_at < 10_000
    first = Recorded.of(path)
    assert first.run.status == "stopped"
    assert first.texts("budget")[-1].endswith("training ends here")
    assert (tmp_path / "out" / f"checkpoint-{stopped_at}" / "trainer_state.json").exists()
    trained(
        tmp_path, FlopwiseCallback(store=path), max_steps=stopped_at + 3, resume_from_checkpoint=True,
    )  # fmt: skip
    runs = {one.run_id: one for one in first.store.runs()}
    assert len(runs) == 2
    second = next(one for key, one in runs.items() if key != first.run.run_id)
    assert second.settings["resumed_from"] == first.run.run_id
    saved = Recorded.of(path, second.run_id)
    assert saved.steps("step_s") == [stopped_at + 1, stopped_at + 2, stopped_at + 3]


def test_stopping_without_a_checkpoint_and_continuing_the_same_run(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseCallback

    path = tmp_path / "runs.db"
    callback = FlopwiseCallback(store=path, budget_hours=0.2 / 3600, on_budget="stop")
    trained(tmp_path, callback, max_steps=10_000)
    assert callback.run is not None
    assert Recorded.of(path).run.status == "stopped"
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("checkpoint-*"))
    trained(tmp_path, FlopwiseCallback(store=path, resume=callback.run.run_id), max_steps=2)
    saved = Recorded.of(path)
    assert (len(saved.store.runs()), saved.run.status) == (1, "finished")


def test_an_exception_in_the_training_fails_the_run(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from flopwise.callbacks import FlopwiseCallback

    class Bomb(TrainerCallback):  # type: ignore[misc]
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == 3:
                raise self.error

    for error, status in ((RuntimeError("out of luck"), "failed"), (KeyboardInterrupt(), "stopped")):
        path = tmp_path / f"{status}.db"
        with pytest.raises(type(error)), FlopwiseCallback(store=path) as callback:
            trained(tmp_path, callback, callbacks=(Bomb(error),))
        saved = Recorded.of(path)
        assert (saved.run.status, saved.steps("step_s")) == (status, [1, 2, 3])


def test_a_loss_that_is_no_number_is_seen_though_the_trainer_hides_it(tmp_path: Path) -> None:
    import torch

    from flopwise.callbacks import FlopwiseCallback

    net = model()
    with torch.no_grad():
        net.lm_head.weight.fill_(float("nan"))
    trained(tmp_path, FlopwiseCallback(store=tmp_path / "runs.db"), net)
    assert Recorded.of(tmp_path / "runs.db").texts("not_finite")[0] == "loss is nan"


def test_workers_of_a_data_loader_do_not_write(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseCallback

    path = tmp_path / "runs.db"
    trained(tmp_path, FlopwiseCallback(store=path), dataloader_num_workers=2, max_steps=4)
    saved = Recorded.of(path)
    assert (len(saved.store.runs()), saved.run.status) == (1, "finished")
    assert saved.steps("step_s") == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["llama", "bert", "classifier", "unknown"])
def test_flops_of_a_batch_are_what_pytorch_counts(kind: str) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertForSequenceClassification

    from flopwise.callbacks.subject import trained_model
    from flopwise.facts.catalog import load_facts

    if kind == "unknown":
        net: Any = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
        inputs: Any = torch.randn(6, 64)
        with FlopCounterMode(display=False) as counter:
            net(inputs.requires_grad_()).sum().backward()
        subject = trained_model(net, load_facts())
        assert "6 N D" in subject.basis
        assert subject.flops(6, 1) == pytest.approx(counter.get_total_flops(), rel=0.02)  # biases apart
        return
    net = model(kind) if kind != "classifier" else BertForSequenceClassification(BertConfig(**SIZES))
    if kind == "classifier":
        net.config._attn_implementation = "eager"
    ids = torch.randint(1, 500, (3, SEQ))
    labels = torch.zeros(3, dtype=torch.long) if kind == "classifier" else ids
    with FlopCounterMode(display=False) as counter:
        net(input_ids=ids, labels=labels).loss.backward()
    found = trained_model(net, load_facts()).flops(3, SEQ)
    if kind == "llama":  # PyTorch counts what the mask hides, too: half of the attention
        hidden = 3 * 3 * 2 * 2 * 2 * SEQ * SEQ * SIZES["hidden_size"] / 2
        assert found == pytest.approx(counter.get_total_flops() - hidden, rel=0.01)
    else:
        assert found == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_configuration_is_the_model_that_is_made_of_it() -> None:
    from flopwise.callbacks.subject import trained_model
    from flopwise.facts.catalog import load_facts

    net = model()
    of_module = trained_model(net, load_facts())
    for given in (net.config, net.config.to_dict()):
        found = trained_model(given, load_facts())
        assert (found.parameters, found.flops(3, SEQ)) == (of_module.parameters, of_module.flops(3, SEQ))


def test_adapters_cost_no_gradients_of_the_base() -> None:
    from flopwise.callbacks.subject import trained_model
    from flopwise.facts.catalog import load_facts

    net = model()
    whole = trained_model(net, load_facts())
    for parameter in net.model.parameters():
        parameter.requires_grad = False
    net.lm_head.weight.requires_grad = False
    net.model.norm.weight.requires_grad = True
    adapted = trained_model(net, load_facts())
    assert (whole.passes, adapted.passes) == (3.0, 2.0)
    assert (adapted.flops(1, 64) or 0) / (whole.flops(1, 64) or 1) == pytest.approx(2 / 3)
