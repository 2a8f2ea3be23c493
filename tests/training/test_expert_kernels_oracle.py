"""What runs beside biased experts with a limited activation, against PyTorch's own count of bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.saved import Setting, trace_items
from flopwise.ops.shapes import Shape
from flopwise.training.blocks import EXPERT_TRAFFIC
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.routing import expert_load
from moved_bytes import meta_tensor, moved_bytes
from named import FACTS, recipe_with

torch = pytest.importorskip("torch", reason="PyTorch counts the bytes: `make oracle` installs it")
TOKENS, WIDTH, EXPERTS = 4096, 512, 4


def biased(made: Any, weights: Any, *biases: Any) -> Any:
    """Each expert's part of the result plus its bias times the tokens' routing weights."""
    sizes = [TOKENS // EXPERTS] * EXPERTS
    parts = zip(torch.split(made, sizes), biases, torch.split(weights, sizes), strict=True)
    return torch.cat([part + bias * weight for part, bias, weight in parts]).to(made.dtype)


def limited(made: Any) -> Any:
    """Both halves within their limits, side by side again."""
    gate, up = torch.chunk(made, 2, dim=-1)
    return torch.cat((gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)), -1)


def gathered(made: Any, bias: Any) -> Any:
    """Each row plus the bias of its expert."""
    return made + bias[torch.zeros(TOKENS, dtype=torch.long, device="meta")]


def plain(made: Any) -> Any:
    """transformers' activation of gpt-oss, whose halves lie in turn."""
    gate, up = made[..., ::2].clamp(max=7.0), made[..., 1::2].clamp(min=-7.0, max=7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


@pytest.mark.parametrize("what", ["bias", "clamp"])
def test_bytes_are_those_that_pytorch_moves(what: str) -> None:
    """To a percent or two: routing weights and biases are narrow."""
    if what == "bias":
        weights, biases = meta_tensor(TOKENS, 1, dtype="float32"), [meta_tensor(WIDTH) for _ in range(EXPERTS)]
        moved = moved_bytes(biased, meta_tensor(TOKENS, WIDTH), weights, *biases)
    else:
        moved = moved_bytes(limited, meta_tensor(TOKENS, 2 * WIDTH))
    expected = [2.0 * TOKENS * WIDTH * sum(elems) for elems in EXPERT_TRAFFIC[what]]
    assert list(moved) == pytest.approx(expected, rel=0.02)


def test_bytes_of_plain_operations_are_those_that_pytorch_moves() -> None:
    """A fused activation reads two halves and writes one, and three and two backward, which every stack counts."""
    moved = moved_bytes(plain, meta_tensor(TOKENS, 2 * WIDTH))
    found = [sum(elems) + fused for elems, fused in zip(EXPERT_TRAFFIC["plain clamp"], (3, 5), strict=True)]
    assert list(moved) == pytest.approx([2.0 * TOKENS * WIDTH * elems for elems in found], rel=0.01)
    moved = moved_bytes(gathered, meta_tensor(TOKENS, WIDTH), meta_tensor(EXPERTS, WIDTH))
    expected = [2.0 * TOKENS * WIDTH * sum(elems) for elems in EXPERT_TRAFFIC["gathered bias"]]
    assert list(moved) == pytest.approx(expected, rel=0.02)  # rows' numbers are narrow


def test_plain_operations_keep_what_autograd_does() -> None:
    """Beside their input: the limited gate, its sigmoid, their product, and 1 + the other half."""
    made, kept = torch.ones(TOKENS, 2 * WIDTH, dtype=torch.bfloat16, requires_grad=True), dict[int, int]()

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = plain(made)
    assert kept.pop(made.untyped_storage().data_ptr())
    layer, shape = load_model("GPT-OSS-20B").stacks[0].kinds[0], Shape(batch=1, query=TOKENS, context=TOKENS)
    trace = trace_items(layer.items, Setting(shape=shape, plain_experts=True), 2880)
    (found,) = (size for name, size in trace.kept.items() if name.endswith("/clamped"))
    routed = TOKENS * 4 * 2880  # 4 experts a token, which are 2,880 wide
    assert found / routed == sum(kept.values()) / result.numel()


def test_only_models_with_biased_experts_pay_and_only_in_stacks_that_add_them_apart() -> None:
    stack = FACTS.stack("megatron-te")
    unlimited = replace(load_facts().accelerator("H100-SXM-80"), tdp_w=None)  # else products gain by what waits
    device = cluster(unlimited, gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    for name in ("GPT-OSS-20B", "Qwen3-30B-A3B"):
        model, forward = load_model(name), []
        for software in (stack, replace(stack, expert_kernels=())):
            recipe = recipe_with(seq_len=4096, global_batch=64, stack=software)
            job = TrainJob(model=model, recipe=recipe, layout=Layout(dp=8, ep=8, zero=1), cluster=device)
            forward.append(dict(estimate(job).breakdown)["forward"])
        more = forward[0] - forward[1]
        if name == "Qwen3-30B-A3B":
            assert more == 0
            continue
        routed = 8 * 4096 * 4 * 24 * 2880  # elements: sequences of a device, tokens, experts a token, layers, width
        bytes_s = device.rates.read_bytes_per_s * device.rates.value["pointwise_frac"]
        fullest = float(expert_load(model, recipe, 8))
        assert more == pytest.approx(fullest * routed * 2.0 * (14 + 8) / bytes_s, rel=0.05)
