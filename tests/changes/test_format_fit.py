"""Which weight format fits: against the memory of serving, the estimate, and sums by hand."""

from __future__ import annotations

import pytest

import flopwise
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.ops.weights import changes_weights
from flopwise.search.plan_serving import formats
from flopwise.search.replica import with_facts
from flopwise.search.workload import resolve
from flopwise.serving.memory_answer import ServingMemoryAnswer
from flopwise.units import GIB
from named import FACTS, train_answer

MODEL, CONTEXT = "Llama-3.1-8B", 16_384
PARAMETERS = 8_030_261_248
KV_BYTES = 2 * 32 * 8 * 128 * 2
"""Of a token: keys and values of 32 layers, 8 heads of 128, 2 bytes each."""


def test_weights_cache_and_longest_context_are_those_of_the_layers() -> None:
    """On 24 GB in bf16: 15 GiB of weights; what vLLM leaves of 90 % goes to a cache of 128 KiB a token."""
    found = flopwise.fit(MODEL, gpu="rtx4090", context=CONTEXT, formats="bf16,awq")
    plain, small = found.formats
    assert (plain.weights, small.weights) == ("bf16", "awq")
    assert plain.weights_bytes == pytest.approx(2 * PARAMETERS, rel=1e-4)
    assert plain.memory.usable_bytes is not None
    room = plain.memory.usable_bytes - plain.memory.per_gpu_bytes + dict(plain.memory.items)["KV cache"]
    assert plain.longest_context * KV_BYTES == pytest.approx(room, rel=0.01)
    assert plain.longest_context < 131_072 / 2 < small.longest_context
    assert plain.most_requests == int(room // ((CONTEXT - 256 / 2) * KV_BYTES)), "half of each answer on average"


def test_each_row_is_what_memory_and_serve_say_of_that_format() -> None:
    found = flopwise.fit("Llama-3.3-70B", gpu="2xa100-80gb", context="32k", output=512, memory_fraction=0.9)
    assert (found.num_gpus, found.layout, found.context) == (2, "tp 2, pp 1", 32_768)
    assert found.formats[0].weights == "bf16"
    sizes = [row.weights_bytes for row in found.formats]
    assert sizes == sorted(sizes, reverse=True)
    for row in found.formats:
        memory = flopwise.memory(
            "Llama-3.3-70B", gpu="a100-80gb", tp=2, context=32_768, weights=row.weights, memory_fraction=0.9
        )
        assert memory.per_gpu_bytes == row.memory.per_gpu_bytes
        assert memory.fits_probability == row.memory.fits_probability
        served = flopwise.serve(
            "Llama-3.3-70B",
            gpu="a100-80gb",
            tp=2,
            input_tokens=32_256,
            output_tokens=512,
            weights=row.weights,
            memory_fraction=0.9,
        ).estimate
        assert row.most_requests == served.max_concurrency
        if row.service is not None:
            assert row.service.output_tokens_per_s == served.output_tokens_per_s
            assert row.service.usd_per_million_output_tokens == served.usd_per_million_output_tokens
    assert found.formats[0].service is None, "131.4 GiB of bf16 leave no room for 5 GiB of cache on each"


def test_the_longest_context_fits_and_a_step_more_does_not() -> None:
    for row in flopwise.fit(MODEL, gpu="rtx4090").formats:
        longest, step = row.longest_context, 131_072 // 1024

        def holds(tokens: int, weights: str = row.weights) -> bool:
            return bool(flopwise.memory(MODEL, gpu="rtx4090", task="serve", weights=weights, context=tokens).fits)

        assert holds(longest)
        assert longest + step > 131_072 or not holds(longest + step)


def test_published_scores_stand_beside_the_formats_that_have_them() -> None:
    rows = {row.weights: row for row in flopwise.fit(MODEL, gpu="h100").formats}
    scores = [record.score for record in FACTS.quality if record.format == "awq" and not record.trained]
    assert rows["awq"].quality == (min(scores), max(scores))
    assert rows["bf16"].quality is None
    published = {one.weights: one.quality for one in flopwise.fit("gpt-oss-120b", gpu="b200").formats}
    assert published["mxfp4"] is None
    assert published["nvfp4"] is not None
    assert 0.8 < rows["awq"].quality[0] < rows["awq"].quality[1] <= 1.01


def test_formats_follow_the_checkpoint_the_engine_and_the_device() -> None:
    published = {row.weights for row in flopwise.fit("gpt-oss-120b", gpu="h100").formats}
    assert "mxfp4" in published
    assert "bf16" not in published, "nobody publishes it so"
    local = {row.weights for row in flopwise.fit(MODEL, gpu="rtx4090", engine="llama.cpp").formats}
    assert {"Q8_0", "Q4_K_M"} < local
    assert "awq" not in local
    encoder = flopwise.fit("bge-m3", gpu="l4", context=512)
    assert encoder.output_tokens == 0
    assert all(row.service is not None and row.service.tpot_s is None for row in encoder.formats)


def test_a_format_of_layers_that_a_model_lacks_is_not_among_its_formats() -> None:
    """MXFP4 is of experts and feed-forward layers: of Mamba 2 it would store nothing in fewer bits."""
    for name in ("mxfp4", "awq"):
        smaller = changes_weights(FACTS.model("Mamba2-2.7B"), FACTS.weight_format(name))
        assert smaller is (name == "awq"), name
    assert changes_weights(FACTS.model("Nemotron-H-8B"), FACTS.weight_format("mxfp4"))
    sizes = [row.weights_bytes for row in flopwise.fit("Mamba2-2.7B", gpu="h100").formats]
    assert len(sizes) > 2
    assert len(set(sizes)) == len(sizes)
    traffic, constraints = {"requests_per_s": 2}, {"weight_formats": ["any"]}
    asked = {"task": "serve", "model": "Mamba2-2.7B", "traffic": traffic, "constraints": constraints}
    workload = with_facts(resolve(asked), FACTS)
    names = {form.name for form in formats(workload, FACTS.model("Mamba2-2.7B"))}
    assert "awq" in names
    assert "mxfp4" not in names


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="answers of 512 tokens leave no prompt in a context of 512"):
        flopwise.fit(MODEL, gpu="h100", context=512, output=512)
    with pytest.raises(SpecError, match="unknown weight format 'fp7'"):
        flopwise.fit(MODEL, gpu="h100", formats=["fp7"])


@pytest.mark.parametrize(
    ("name", "count", "plain"),
    [("2xa100-80gb", 2, "a100-80gb"), ("8 x H100", 8, "H100"), ("16XH200", 16, "H200"), ("h100", None, "h100")],
)
def test_a_number_before_the_name_counts_accelerators(name: str, count: int | None, plain: str) -> None:
    machines = MachineSpec(gpu=name)
    assert (machines.counted, machines.gpu) == (count, plain)
    assert machines.num_gpus(None) == (count or 1)
    assert machines.num_gpus(count) == (count or 1)
    if count is not None:
        with pytest.raises(SpecError, match=f"gpus: 3, but {count}x{plain} means {count}; give one of them"):
            machines.num_gpus(3)


def test_counted_accelerators_are_one_replica_of_a_service_and_all_of_a_run() -> None:
    """As `vllm serve --tensor-parallel-size 4` and `torchrun --nproc-per-node 8` take them."""
    service = flopwise.serve("Llama-3.3-70B", gpu="4xh100")
    assert (service.replicas, int(service.estimate.job.layout.tp)) == (1, 4)
    replicas = flopwise.serve("Llama-3.3-70B", gpu="8xh100", tp=4)
    assert (replicas.replicas, replicas.num_gpus) == (2, 8)
    encoder = flopwise.serve("bge-m3", gpu="4xl4")
    assert (encoder.replicas, encoder.estimate.num_gpus) == (4, 1)
    assert train_answer("gpt2", gpu="4xh100", seq=1024).estimate.num_gpus == 4
    sharded = flopwise.memory(MODEL, gpu="8xh100", task="train", seq=4096)
    assert dict(sharded.items)["weights"] == pytest.approx(4 * PARAMETERS / 8, rel=1e-3), "fp32 over eight (FSDP)"
    spread = flopwise.memory("Llama-3.3-70B", gpu="2xa100-80gb", context="32k")
    assert dict(spread.items)["weights"] / GIB == pytest.approx(70_553_706_496 * 2 / 2 / GIB, rel=1e-3)
    assert isinstance(spread, ServingMemoryAnswer)
    assert spread.context == 32_768
    for question in (flopwise.serve, flopwise.fit):
        with pytest.raises(SpecError, match="3 accelerators cannot be divided into replicas of 2"):
            question(MODEL, gpu="3xh100", tp=2)
    with pytest.raises(SpecError, match="is a count of 0"):
        flopwise.serve(MODEL, gpu="0xh100")


def test_beyond_a_node_stages_follow() -> None:
    """Tensor parallelism inside a node of eight, two pipeline stages over it; what heads forbid is not taken."""
    found = flopwise.fit("Llama-3.1-405B", gpu="16xh100", formats="fp8").formats[0].memory.layout
    assert (int(found.tp), int(found.pp)) == (8, 2)
    odd = flopwise.fit("Qwen2.5-14B", gpu="6xl40s", formats="bf16").formats[0].memory.layout
    assert int(odd.tp) * int(odd.pp) == 6
    assert 40 % int(odd.tp) == 0
