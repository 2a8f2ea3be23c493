"""A trace that is written is the one that the simulator replays; the comparison adds up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_exporter import exporter, page, times

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.observations.comparison import compare, token_terms
from flopwise.observations.observation import (
    LATENCIES,
    Observation,
    observation,
    read_observation,
    write_observation,
)
from flopwise.observations.requests import MeasuredRequests
from flopwise.serving.iteration import StepLoad
from flopwise.serving.sim.trace import read_trace_columns
from flopwise.serving.techniques import runner

MODEL, GPU = "Llama-3.1-8B", "l40s"


def requests(count: int = 40) -> MeasuredRequests:
    """Requests four a second, each a little slower than the one before."""
    n = np.arange(count)
    return MeasuredRequests(
        arrival_s=n / 4, prompt=200 + n, output=np.full(count, 33), cached=np.where(n % 2, 64, 0),
        ttft_s=0.1 + n / 1e4, e2e_s=0.1 + n / 1e4 + 32 * 0.02, began_at_s=1.7e9,
    )  # fmt: skip


def test_a_trace_goes_round(tmp_path: Path) -> None:
    load = requests()
    found, trace = observation(None, load)
    write_observation(tmp_path / "seen", found, trace)
    columns = read_trace_columns(tmp_path / "seen" / "trace.csv")
    assert columns["arrival_s"] == pytest.approx(load.arrival_s)
    assert columns["prompt_tokens"].tolist() == load.prompt.tolist()
    assert columns["output_tokens"].tolist() == load.output.tolist()
    assert columns["prefix_tokens"].tolist() == load.cached.tolist()
    assert read_observation(tmp_path / "seen") == found


def test_an_observation_without_a_trace_leaves_no_older_one(tmp_path: Path) -> None:
    found, trace = observation(None, requests())
    write_observation(tmp_path, found, trace)
    write_observation(tmp_path, found, None)
    assert not (tmp_path / "trace.csv").exists()
    assert read_observation(tmp_path) == found


def test_percentiles_of_clients_by_hand() -> None:
    """40 first tokens from 100.0 to 103.9 ms: the median lies half-way, 101.95 ms."""
    found, _ = observation(None, requests())
    assert found.ttft is not None
    assert found.ttft.p50 == pytest.approx(0.10195)
    assert found.ttft.p95 == pytest.approx(0.1 + 0.95 * 39 / 1e4)
    assert found.itl is not None
    assert found.itl.p99 == pytest.approx(0.02)
    assert found.requests_per_s == pytest.approx(40 / (39 / 4 + 0.1039 + 0.64))


def test_a_replay_has_the_measured_figures_beside_the_simulated_ones(tmp_path: Path) -> None:
    found, trace = observation(None, requests())
    write_observation(tmp_path, found, trace)
    run = flopwise.replay(MODEL, tmp_path, gpu=GPU)
    figures = {one.name: one for one in run.comparison.figures}
    assert figures["itl p50"].measured == pytest.approx(0.02)
    assert figures["itl p50"].predicted == pytest.approx(run.answer.summary.tpot_s.p50)
    assert figures["ttft mean"].predicted == pytest.approx(float(run.answer.simulated.ttft_s.mean()))
    assert run.answer.simulated.trace.prompt.tolist() == requests().prompt.tolist()


def test_measured_and_simulated_terms_add_up() -> None:
    """Of a service as fast as simulated, but for 30 ms more of host and 5 ms more a token."""
    run = flopwise.simulate(MODEL, gpu=GPU, rate=4.0, requests=60, input_tokens=300, output_tokens=40)
    told = run.simulated
    first, wait, gap = float(told.ttft_s.mean()), float(told.wait_s.mean()), float(np.nanmean(told.tpot_s))
    host = float(told.host_ps.mean()) / 1e12
    seen, _ = observation(None, requests())
    assert seen.ttft is not None
    assert seen.itl is not None
    seen = replace(
        seen, ttft=replace(seen.ttft, mean=first + 0.03), itl=replace(seen.itl, mean=gap + 0.005), queue_s=wait,
        prefill_s=first - wait - host, running=run.summary.mean_running,
    )  # fmt: skip
    compared = compare(seen, told, run.job)
    terms = {(term.of, term.name): term for term in compared.terms}
    for of, whole, measured in (("first token", first, first + 0.03), ("token", gap, gap + 0.005)):
        own = [term for term in compared.terms if term.of == of]
        assert sum(term.predicted_s for term in own) == pytest.approx(whole)
        assert sum(term.measured_s or 0.0 for term in own) == pytest.approx(measured)
    assert terms["first token", "host"].measured_s == pytest.approx(host + 0.03)
    assert terms["first token", "queue"].measured_s == pytest.approx(wait)
    assert terms["token", "unexplained time"].measured_s == pytest.approx(0.005)
    assert compared.findings[0].startswith("first token: host is 30 ms longer")
    assert compared.findings[1].startswith("token: unexplained time is 5 ms longer")


def test_the_terms_of_a_token_are_those_of_its_step() -> None:
    """Weights, cache, messages and host add up to a step; a longer context is a matter of the cache."""
    job = flopwise.simulate(MODEL, gpu="2xl40s", rate=4.0, requests=8, input_tokens=300, output_tokens=4).job
    short, long = (token_terms(job, 16.0, context) for context in (1000.0, 3000.0))
    for terms, context in ((short, 1000.0), (long, 3000.0)):
        load = StepLoad(decode_batch=16.0, decode_context=context)
        assert sum(terms.values()) == pytest.approx(float(np.ravel(runner(job).step(load, job.layout).seconds)[0]))
    assert long["cache"] > 2 * short["cache"] > 0
    for name in ("weights", "messages", "host"):
        assert long[name] == pytest.approx(short[name], rel=1e-2), name


def test_the_command_observes_writes_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page("vllm")
    with exporter([text, times(text, 2)]) as url:
        code = cli.main(["observe", url, "--for", "0.3", "--every", "0.1", "-o", str(tmp_path), "--json"])
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "vllm"
    assert document["requests"] == 722
    assert {*LATENCIES} <= {*document}
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == 723
    again = ["simulate", MODEL, "--gpu", GPU, "--replay", str(tmp_path)]
    assert cli.main([*again, "--json"]) == 0
    assert {"figures", "terms", "findings"} == {*json.loads(capsys.readouterr().out)["comparison"]}
    assert cli.main(again) == 0
    assert "Measured against simulated" in capsys.readouterr().out
    assert cli.main([*again, "--rate", "2"]) == 2
    assert "leave --rate out" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "why"), [
    ("{", "damaged"), ("[]", "not a file of"), ('{"format": "other"}', "not a file of"),
    ('{"format": "flopwise-observation", "version": 9}', "newer"),
    ('{"format": "flopwise-observation", "version": 1, "engine": 3}', "damaged"),
])  # fmt: skip
def test_a_broken_observation_is_refused(tmp_path: Path, text: str, why: str) -> None:
    found, trace = observation(None, requests())
    write_observation(tmp_path, found, trace)
    (tmp_path / "observation.json").write_text(text)
    with pytest.raises(SpecError, match=why):
        read_observation(tmp_path)


def test_an_observation_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no observation there"):
        read_observation(tmp_path)
    with pytest.raises(SpecError, match="nothing to observe"):
        flopwise.observe()


def test_an_observation_is_plain_data() -> None:
    assert Observation(engine=None, url=None, began_at_s=0.0, duration_s=1.0, requests=0).notes == ()
