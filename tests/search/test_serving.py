"""Deployments of a service against calculations by hand: replicas, instances, queues of encoders, and floors."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from flopwise.cost.collectives import all_reduce_s
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.formats import BF16, BF16_CACHE
from flopwise.facts.models.catalog import load_model
from flopwise.search.answer import RejectionLog
from flopwise.search.deployments import Deployments, deployments, least_prompt_s
from flopwise.search.nodes import NodeKind, node_kinds
from flopwise.search.plan import plan
from flopwise.search.plan_serving import check_serving
from flopwise.search.replica import with_facts, with_lengths
from flopwise.search.serving_analysis import floors, message_s, weights_read_s
from flopwise.search.serving_option import ServingOption, serving_options
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from
from flopwise.serving.steady import front_end_s
from flopwise.serving.waiting_batches import WaitingBatches

LLAMA_8B = 8_030_261_248
"""Parameters of Llama-3.1-8B, as its model card and checkpoint count them."""
EMBEDDED = 128_256 * 4096
"""Of which the embedding, of which a token reads one row."""


@cache
def facts() -> Facts:
    return load_facts()


def asked(task: str = "serve", model: str = "Llama-3.1-8B", instance: str = "p5.48xlarge", **more: Any) -> Resolved:
    read = workload_from({
        "model": model, "task": task, "simulate": False,
        "traffic": {"requests_per_s": 100, "input_tokens": 512, "output_tokens": 128},
        "constraints": {"instances": [instance], "providers": ["aws"], "weight_formats": ["bf16"], "kv_dtype": "bf16"},
        **more,
    })  # fmt: skip
    return with_facts(read, facts())


def node(workload: Resolved) -> NodeKind:
    return node_kinds(workload, facts(), RejectionLog())[0]


def rows(workload: Resolved) -> Deployments:
    found = deployments(load_model(workload.model), workload, node(workload), BF16, BF16_CACHE)
    assert found is not None
    assert found.batch.size > 10
    return found


def option_of(workload: Resolved, kind: NodeKind, found: Deployments) -> ServingOption:
    model = load_model(workload.model)
    return serving_options(workload, model, kind, found, BF16_CACHE, kind.priced[:1])[0]


def test_replicas_spend_at_most_85_percent_of_their_time_on_the_arrivals() -> None:
    found = rows(asked())
    wanted = np.maximum(np.ceil(100 / (0.85 * found.requests_per_s)), 1)
    assert np.array_equal(found.replicas, wanted)
    assert len(set(wanted.tolist())) > 5
    assert found.busy_frac == pytest.approx(100 / wanted / found.requests_per_s)
    assert found.tokens_per_s == pytest.approx(100 * 128)


def test_replicas_are_sized_for_the_peak_and_paid_tokens_are_of_the_mean() -> None:
    calm, peaked = asked(), asked(traffic={"requests_per_s": 100, "peak": 3, "input_tokens": 512, "output_tokens": 128})
    found, plain = rows(peaked), rows(calm)
    assert np.array_equal(found.replicas, np.maximum(np.ceil(300 / (0.85 * plain.requests_per_s)), 1))
    assert found.tokens_per_s == pytest.approx(100 * 128)


def test_replicas_hold_all_users() -> None:
    traffic = {"concurrency": 1000, "input_tokens": 512, "output_tokens": 128}
    found = rows(asked(model="gpt-oss-120b", traffic=traffic))
    places = found.batch * found.dp  # of the attention replicas that share experts
    assert {1, 8} <= set(found.dp.tolist())
    assert np.array_equal(found.replicas, np.maximum(np.ceil(1000 / places), 1))
    seconds = found.ttft_s + 127 * found.tpot_s
    assert found.e2e_s == pytest.approx(seconds)
    assert found.tokens_per_s == pytest.approx(found.replicas * found.requests_per_s * 128)


def test_replicas_of_a_batch_job_end_it_before_its_deadline() -> None:
    """At the pace that they reach with a chance of 80 %: the 20 % quantile of the band of throughput."""
    traffic = {"requests": 10_000_000, "input_tokens": 512, "output_tokens": 128}
    workload = asked("batch", traffic=traffic, targets={"deadline": "2h"})
    found = rows(workload)
    pace = found.requests_per_s * option_of(workload, node(workload), found).bands["throughput"].quantile(1 - 0.8)
    held = np.maximum(8 // (found.tp * found.pp * found.dp), 1)  # by an instance, whose devices are all paid for
    fewest = np.ceil(10_000_000 / (7200 - found.start_s) / pace)
    assert found.replicas == pytest.approx(np.ceil(fewest / held) * held)
    assert len(set(found.replicas.tolist())) > 5


def test_a_batch_job_fills_its_machines_as_far_as_it_has_full_batches() -> None:
    """Eight devices paid for a day that one replica took: now as many replicas as there are batches for."""
    traffic = {"requests": 1000, "input_tokens": 512, "output_tokens": 128}
    found = rows(asked("batch", traffic=traffic, targets={"deadline": "24h"}))
    gpus = found.tp * found.pp * found.dp
    batches = np.ceil(1000 / (found.batch * found.dp))
    assert found.replicas == pytest.approx(np.minimum(np.maximum(8 // gpus, 1), batches))
    assert {1, 4, 8} <= set(found.replicas.tolist())
    assert set(rows(asked(traffic={"requests_per_s": 0.1, "input_tokens": 512, "output_tokens": 128})).replicas) == {1}


@pytest.mark.parametrize("instance", ["p5en.48xlarge", "g6e.12xlarge"])
def test_a_later_deadline_never_makes_a_batch_job_dearer(instance: str) -> None:
    """On the same machine: fewer replicas sufficed for a later one, and left its other devices idle but paid for."""
    job = {
        "model": "Llama-3.1-8B", "task": "batch", "constraints": {"instances": [instance]},
        "traffic": {"requests": 400_000, "input_tokens": 600, "output_tokens": 150},
    }  # fmt: skip
    jobs = (workload_from(job | {"targets": {"deadline": deadline}}) for deadline in ("3h", "12h", "24h", "100h"))
    costs = [plan(one, facts()).plans[0].cost_usd for one in jobs]
    assert costs == sorted(costs, reverse=True)


def test_whole_instances_hold_the_replicas() -> None:
    """As many replicas as an instance has room for; one larger than an instance takes several."""
    workload = asked(model="Llama-3.1-405B", traffic={"requests_per_s": 30, "input_tokens": 512, "output_tokens": 128})
    kind, found = node(workload), rows(workload)
    option = option_of(workload, kind, found)
    sizes = set()
    for row in range(found.batch.size):
        gpus, replicas = int(found.tp[row] * found.pp[row] * found.dp[row]), float(found.replicas[row])
        instances = math.ceil(replicas / (8 // gpus)) if gpus <= 8 else replicas * gpus / 8
        assert option.instances[row] == instances
        assert option.cost_usd[row] == pytest.approx(instances * kind.priced[0].usd_per_hour * 730)
        sizes.add(gpus)
    assert max(sizes) > 8
    small = asked(traffic={"requests_per_s": 900, "input_tokens": 512, "output_tokens": 128})
    found = rows(small)
    option = option_of(small, kind, found)
    each = found.tp * found.pp
    assert {1, 2, 4, 8} <= set(each.tolist())
    assert np.array_equal(
        option.instances, np.ceil(found.replicas / (8 // np.minimum(each, 8))) * np.maximum(each // 8, 1)
    )


def encoded(percentile: str, **traffic: Any) -> tuple[Deployments, float]:
    """Rows of an encoder under a target at `percentile`, and what its server adds to each request."""
    load = {"requests_per_s": 2000, "input_tokens": 256, **traffic}
    targets = {"latency": {percentile: "1s"}}
    idle = rows(asked("encode", "BERT large (uncased)", "g6.xlarge", traffic={"concurrency": 64, "input_tokens": 256}))
    found = rows(asked("encode", "BERT large (uncased)", "g6.xlarge", traffic=load, targets=targets))
    service = idle.batch / idle.requests_per_s  # alone, a batch takes its pass
    server = idle.e2e_s - service
    assert np.ptp(server) < 1e-9
    return found, float(server[0])


@pytest.mark.parametrize("percentile", ["mean", "p50", "p90", "p99"])
def test_an_encoder_takes_what_waits(percentile: str) -> None:
    """Each row as a queue of its own, whose smaller batches are the rows before it of the same layout."""
    found, server = encoded(percentile)
    engine = asked("encode", "BERT large (uncased)", "g6.xlarge").engine
    sizes = found.batch.reshape(-1, found.num_layouts)
    seconds = (found.batch / found.requests_per_s).reshape(sizes.shape)
    for row in range(found.batch.size):
        place, layout = divmod(row, found.num_layouts)
        arrivals = 2000 / float(found.replicas[row])
        column = slice(0, place + 1), slice(layout, layout + 1)
        batches = WaitingBatches(sizes[column], seconds[column], np.array([arrivals]))
        front_s = front_end_s(engine, 256, batches.arrivals_per_s, batches.mean_batch)
        expected = server + float((front_s + batches.latency_s(percentile))[0])
        assert float(found.e2e_s[row]) == pytest.approx(expected, rel=1e-6)
        assert float(found.busy_frac[row]) == pytest.approx(arrivals / float(found.requests_per_s[row]))


def test_requests_of_unstated_length_are_as_long_as_the_model_takes() -> None:
    """BERT's 512 positions instead of the usual 1,024 tokens; what is stated stays, and so does what fits."""
    read = workload_from({"model": "bge-large", "task": "serve", "traffic": {"requests_per_s": 20}})
    changed, notes = with_lengths(read, load_model("bge-large"))
    assert (read.input_tokens, changed.input_tokens) == (1024, 512)
    assert notes == ("requests of 512 tokens in, because the context of BERT large (uncased) is 512 tokens",)
    stated = workload_from(
        {"model": "bge-large", "task": "serve", "traffic": {"requests_per_s": 20, "input_tokens": 600}}
    )
    with pytest.raises(SpecError, match="an input of 600 tokens exceeds the context"):
        check_serving(stated, load_model("bge-large"), facts())
    llama = workload_from({"model": "Llama-3.1-8B", "task": "serve", "traffic": {"requests_per_s": 20}})
    assert with_lengths(llama, load_model("Llama-3.1-8B")) == (llama, ())


def test_no_token_is_quicker_than_reading_the_weights() -> None:
    """All weights but the embedding's other rows, 2 bytes each, with the bandwidth of eight devices' datasheet."""
    kind = node(asked())
    device = kind.cluster.accelerator
    read = weights_read_s(load_model("Llama-3.1-8B"), kind, BF16)
    assert read == pytest.approx(2 * (LLAMA_8B - EMBEDDED) / (8 * device.hbm_bytes_per_s), rel=0.08)
    one = weights_read_s(load_model("Llama-3.1-8B"), node(asked(instance="g6.xlarge")), BF16)
    slow = facts().accelerator("l4").hbm_bytes_per_s
    assert one == pytest.approx(read * 8 * device.hbm_bytes_per_s / slow)


def test_no_prompt_is_quicker_than_its_operations() -> None:
    """2 a weight and token, and 4 width x pairs of attention, half of them hidden: Kaplan et al. 2020, table 1."""
    kind, tokens = node(asked()), 2000
    layers = LLAMA_8B - 2 * EMBEDDED
    flops = 2 * layers * tokens + 32 * 4 * 4096 * tokens * tokens / 2
    rate = kind.cluster.accelerator.peak["bf16"]
    found = least_prompt_s(load_model("Llama-3.1-8B"), kind, "bf16", tokens, np.array([1.0, 4.0]))
    assert found == pytest.approx([flops / rate, flops / (4 * rate)], rel=2e-3)


def test_floors_of_a_request_are_its_prompt_and_its_tokens() -> None:
    targets = {"ttft": "1ms", "tpot": "1ms", "latency": "1ms"}
    workload = asked(targets=targets)
    model, kind = load_model("Llama-3.1-8B"), node(workload)
    ttft, tpot, latency = floors(workload, model, [kind], [BF16])
    best = []
    for tp in (1, 2, 4, 8):
        read = 8 * weights_read_s(model, kind, BF16) / tp
        links = float(message_s(model, kind, np.array([float(tp)]))[0])
        best.append(read + links)
    by_name = {floor.target: floor for floor in (ttft, tpot, latency)}
    assert by_name["tpot"].seconds == pytest.approx(min(best))
    host = by_name["latency"].parts["the server"]
    whole = by_name["ttft"].seconds + 127 * by_name["tpot"].seconds + host
    assert by_name["latency"].seconds == pytest.approx(whole)
    assert all(floor.forbids == (floor.seconds > 0.001) for floor in by_name.values())


def test_two_messages_a_layer_cross_the_tensor_ranks() -> None:
    """Shoeybi et al. 2019 (arXiv:1909.08053), section 3: one all-reduce after attention, one after the MLP."""
    kind = node(asked())
    each = all_reduce_s(kind.cluster.fabric, 1.0, np.array([1.0, 8.0]), direct=True)
    found = message_s(load_model("Llama-3.1-8B"), kind, np.array([1.0, 8.0]))
    assert found == pytest.approx(2 * 32 * np.asarray(each))
    assert found[0] == 0
