"""A run that is given in samples: a plan counts their tokens as `train` does, and names `train` for what has none."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise import plan, serve, train
from flopwise.cli.plan_text import title
from flopwise.errors import MissingFactError, SpecError


@pytest.mark.parametrize(
    ("model", "options", "tokens"),
    [
        ("ViT-L/16", {"task": "pretrain"}, 197),
        ("Llama-3.1-8B", {"task": "finetune", "lora": 16}, 2048),
        ("gpt2", {"task": "pretrain", "seq": 512}, 512),
    ],
)
def test_samples_have_the_tokens_that_train_takes(model: str, options: dict[str, Any], tokens: int) -> None:
    found = plan(model, samples=1_000_000, gpus=["a100-80gb"], **options)
    same = plan(model, tokens=1_000_000 * tokens, gpus=["a100-80gb"], **options)
    assert found.plans[0].seconds == same.plans[0].seconds
    assert found.plans[0].cost_usd == same.plans[0].cost_usd
    assert " on 1.00 M samples" in title(found) or " on 1000000 samples" in title(found)
    kinds = {name: value for name, value in options.items() if name in {"lora", "seq"}}
    run = train(model, gpu="a100-80gb", samples=1_000_000, global_batch=64, **kinds).estimate
    assert run.run is not None
    assert run.run.steps == pytest.approx(1_000_000 / 64, rel=1e-3)


def test_tokens_and_samples_are_one_too_many() -> None:
    with pytest.raises(SpecError, match="given in tokens as well"):
        plan("gpt2", task="pretrain", tokens=1e9, samples=1e6)
    with pytest.raises(SpecError, match=r"needs data\.tokens or data\.samples"):
        plan("gpt2", task="pretrain")


def test_a_network_without_token_layers_is_sent_to_what_answers_for_it() -> None:
    with pytest.raises(
        SpecError, match="SDXL base UNet has no token layers to plan; `flopwise train 'SDXL base UNet'`"
    ):
        plan("sdxl", task="finetune", samples=1_000_000)
    with pytest.raises(MissingFactError, match="no token layers, which this question is about; `flopwise train 'SDXL"):
        serve("stable-diffusion-xl", gpu="h100")
    assert train("SDXL base UNet", gpu="h100").fits
    with pytest.raises(MissingFactError, match="only published figures"):
        serve("Kimi-K3", gpu="h100")
