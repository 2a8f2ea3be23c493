"""A real training on the CPU with Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from read_back import SIZES, Recorded

from libraries import needs

pytestmark = [
    pytest.mark.oracle, pytest.mark.filterwarnings("ignore"), needs("torch", "transformers", "lightning"),
]  # fmt: skip


def module(fail_at: int | None = None) -> Any:
    import lightning
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    class Tiny(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(LlamaConfig(**SIZES))

        def training_step(self, batch: Any, number: int) -> Any:
            if number == fail_at:
                raise RuntimeError("out of luck")
            return self.model(**batch).loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    return Tiny()


def loader(batches: int = 16) -> Any:
    import torch

    rows = torch.randint(1, 500, (4 * batches, 32))
    rows_of = [{"input_ids": row, "labels": row} for row in rows]
    return torch.utils.data.DataLoader(rows_of, batch_size=4)


def trainer(folder: Path, callback: Any, **changes: Any) -> Any:
    import lightning

    usual = {
        "default_root_dir": folder, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "callbacks": [callback], "max_epochs": 1,
    }  # fmt: skip
    return lightning.Trainer(**{**usual, **changes})


def test_steps_tokens_and_evaluations(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseLightningCallback

    path = tmp_path / "runs.db"
    callback = FlopwiseLightningCallback(store=path, peak=1e11)
    trainer(tmp_path, callback, accumulate_grad_batches=2, val_check_interval=8).fit(module(), loader(), loader(2))
    saved = Recorded.of(path)
    assert (saved.run.status, saved.run.model, saved.run.settings["seq"]) == ("finished", "LlamaForCausalLM", 32)
    assert saved.steps("step_s") == list(range(1, 9))
    assert saved.values("tokens")[-1] == 16 * 4 * 32
    assert saved.values("tokens_per_s") == pytest.approx(2 * 4 * 32 / saved.values("step_s"))
    assert (saved.values("mfu_frac") > 0).all()
    assert len(saved.values("loss")) == 8
    assert len(saved.texts("evaluation")) == 2
    assert callback.run is not None
    assert callback.run.total_steps == 8


def test_a_budget_writes_a_checkpoint_and_stops_and_the_next_run_is_linked(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseLightningCallback

    path = tmp_path / "runs.db"
    callback = FlopwiseLightningCallback(store=path, budget_hours=0.2 / 3600, on_budget="checkpoint")
    trainer(tmp_path, callback, max_epochs=10_000).fit(module(), loader())
    first = Recorded.of(path)
    assert first.run.status == "stopped"
    (saved,) = tmp_path.glob("budget-step-*.ckpt")
    other = FlopwiseLightningCallback(store=path)
    steps = int(saved.stem.rpartition("-")[2])
    trainer(tmp_path, other, max_epochs=-1, max_steps=steps + 3).fit(
        module(), loader(), ckpt_path=saved, weights_only=False
    )
    assert other.run is not None
    assert other.run.run.settings["resumed_from"] == first.run.run_id
    assert Recorded.of(path, other.run.run_id).steps("step_s") == [steps + 1, steps + 2, steps + 3]


def test_an_exception_fails_the_run(tmp_path: Path) -> None:
    from flopwise.callbacks import FlopwiseLightningCallback

    path = tmp_path / "runs.db"
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer(tmp_path, FlopwiseLightningCallback(store=path)).fit(module(fail_at=3), loader())
    saved = Recorded.of(path)
    assert (saved.run.status, saved.steps("step_s")) == ("failed", [1, 2, 3])
