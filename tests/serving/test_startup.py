"""Cold starts: their parts, what published starts took, and the rows of engines behind them."""

from dataclasses import replace

import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.facts.models.catalog import load_model
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.startup import cold_start
from named import FACTS, serve_job_with

H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
JOB = serve_job_with(model=load_model("Llama-3.1-8B"), cluster=H100)
NVME = FACTS.storage("nvme")


def parts(job: ServeJob, kind: str = "nvme") -> dict[str, float]:
    return dict(cold_start(job, FACTS.storage(kind)).parts)


@pytest.mark.parametrize("name", FACTS.engines)
def test_every_engine_has_a_row(name: str) -> None:
    row = FACTS.engine(name)
    assert row.support_source
    assert row.bootstrap_s > 0
    assert row.runs(FACTS.weight_format(row.plain_format(None)))


def test_engines_say_which_formats_they_run() -> None:
    assert FACTS.engine("llama.cpp").runs(FACTS.weight_format("Q4_K_M"))
    assert not FACTS.engine("llama.cpp").runs(FACTS.weight_format("awq"))
    assert not FACTS.engine("tensorrt-llm").runs(FACTS.weight_format("Q4_K_M"))
    assert FACTS.engine("vllm").runs(FACTS.weight_format("fp8-block"))
    told = flopwise.serve("Llama-3.1-8B", gpu="h100", engine="tensorrt-llm", weights="Q4_K_M").assumptions
    assert any("no documented support for Q4_K_M" in t for t in told)


def test_published_starts_lie_within_a_third() -> None:
    """Starts that the rows were not taken from.

    vLLM pull request 11005: 39.3 s of init with compilation, 8B; vLLM issue 19824: 70 s of compilation and 60 s of
    capture for 80 layers (tp 8).
    """
    eight = parts(JOB)
    init = eight["compilation"] + eight["graphs"] + eight["profiling and warm-up"]
    assert init == pytest.approx(39.3, rel=0.35)
    seventy = parts(replace(JOB, model=load_model("Llama-3.1-70B"), layout=ServingLayout(tp=8)))
    assert seventy["compilation"] + seventy["graphs"] == pytest.approx(130, rel=0.35)


def test_ranks_of_a_node_share_what_is_read() -> None:
    one, eight = (cold_start(replace(JOB, layout=ServingLayout(tp=n)), NVME) for n in (1, 8))
    assert one.read_bytes == eight.read_bytes == pytest.approx(16.06e9, rel=0.01)
    assert dict(eight.parts)["weights"] < dict(one.parts)["weights"]  # eight loaders, one reading
    two_nodes = cold_start(replace(JOB, layout=ServingLayout(tp=8, pp=2)), NVME)
    assert two_nodes.read_bytes == pytest.approx(one.read_bytes / 2)


def test_slower_storage_starts_no_sooner_and_memory_is_bound_by_the_link() -> None:
    kinds = ("page-cache", "nvme-gen5", "nvme-gen4", "ebs-gp3", "hdd")
    seconds = [cold_start(JOB, FACTS.storage(kind)).seconds for kind in kinds]
    assert seconds == sorted(seconds)
    assert cold_start(JOB, FACTS.storage("hdd")).weights_bound == "storage"
    assert parts(JOB, "hdd")["weights"] == pytest.approx(16.06e9 / 0.275e9, rel=0.01)
    assert parts(JOB, "page-cache")["weights"] < 2


def test_an_image_is_pulled_first_and_a_process_of_c_starts_sooner() -> None:
    pulled = cold_start(JOB, NVME, image_bytes=10e9, image_bytes_per_s=200e6)
    assert pulled.parts[0] == ("image", 50.0)
    small = replace(JOB, engine=FACTS.engine("llama.cpp"), weights=FACTS.weight_format("Q4_K_M"))
    assert cold_start(small, NVME).seconds < 0.2 * cold_start(JOB, NVME).seconds
