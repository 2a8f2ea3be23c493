"""Engines that are read again and again: names of each, counters that begin anew, absences, strangers."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_exporter import exporter, page, times, watched

import flopwise
from flopwise.errors import SpecError
from flopwise.observations.observation import observation, watch_engine
from flopwise.observations.readings import engine_of, engine_page, engines, page_series, page_urls, reading
from named import FACTS


@pytest.mark.parametrize("engine", engines(FACTS))
def test_each_engine_is_known_by_its_page(engine: str) -> None:
    assert engine_of(page_series(page(engine)), FACTS) == engine


def test_a_recorded_page_of_vllm_gives_every_quantity() -> None:
    """Twice the counters of the recorded page a second later: it grew by what the page says."""
    text = page("vllm")
    seen = watched([text, times(text, 2)])
    assert seen.numbers["requests"] == 722
    assert seen.numbers["output_tokens"] == 42_688
    assert seen.numbers["cached_tokens"] == 13_056
    assert {"ttft", "itl", "tpot", "latency", "queue", "prefill", "decode", "steps"} <= set(seen.histograms)
    found, trace = observation(seen, None)
    assert found.engine == "vllm"
    assert found.requests == 722
    assert found.cached_frac == pytest.approx(13_056 / 75_776)
    assert trace is not None
    assert len(trace.arrival_s) == 722
    assert trace.prompt.mean() == pytest.approx(75_776 / 722, rel=0.01)
    assert trace.output.mean() == pytest.approx(42_688 / 722, rel=0.01)


def test_figures_of_sglang_by_hand() -> None:
    text = page("sglang")
    found, trace = observation(watched([text, times(text, 3)]), None)
    assert found.requests == 20
    assert found.ttft is not None
    assert found.ttft.mean == pytest.approx(0.3)
    assert (found.ttft.p50, found.ttft.low["p50"], found.ttft.high["p50"]) == pytest.approx((0.25, 0.2, 0.4))
    assert found.ttft.high["p99"] is None
    assert found.queue_s == pytest.approx(0.05)
    assert found.cached_frac == pytest.approx(0.375)
    assert found.running == pytest.approx((3 + 9) / 2)
    assert trace is not None
    assert trace.output.tolist() == [90] * len(trace.output)
    assert trace.cached.tolist() == [150] * len(trace.cached)


def test_figures_of_tensorrt_llm_sum_its_reasons() -> None:
    text = page("tensorrt-llm")
    found, _ = observation(watched([text, times(text, 2)]), None)
    assert (found.requests, found.output_tokens) == (10, 50)
    assert (found.queue_s, found.prefill_s) == pytest.approx((0.1, 0.2))


def test_figures_of_tgi_whose_counters_have_no_ending() -> None:
    text = page("tgi")
    found, trace = observation(watched([text, times(text, 2)]), None)
    assert (found.requests, found.output_tokens) == (10, 50)
    assert found.input_tokens == pytest.approx(150, rel=0.01)
    assert found.itl is not None
    assert found.itl.mean == pytest.approx(0.03)
    assert trace is not None


def test_llama_cpp_counts_no_requests_and_says_so() -> None:
    text = page("llama.cpp")
    found, trace = observation(watched([text, times(text, 2)]), None)
    assert found.itl is not None
    assert found.itl.mean == pytest.approx(10 / 400)
    assert trace is None
    assert any("not requests" in note for note in found.notes)


def test_counters_that_begin_anew_are_counted_from_zero_and_said() -> None:
    """10 requests, then 30, then a new process that has answered 10: 20 and 10 more."""
    text = page("sglang")
    seen = watched([text, times(text, 3), text])
    assert seen.restarts == 1
    assert seen.numbers["requests"] == 30
    assert seen.histograms["ttft"].count == 30
    assert any("restarted" in note for note in observation(seen, None)[0].notes)


def test_requests_in_flight_of_an_engine_that_began_anew_are_not_taken_from_later_arrivals() -> None:
    """3 run and 1 waits, then 12 in all, then a new process with 3 + 1 that has answered 10.

    Arrived: 20 answered and 8 more in flight; then the 10 and the 4, for the 12 of before are lost.
    """
    text = page("sglang")
    seen = watched([text, times(text, 3), text])
    found, trace = observation(seen, None)
    assert trace is not None
    assert len(trace.arrival_s) == 20 + 8 + 10 + 4
    assert any("12 requests in flight were lost" in note for note in found.notes)


def test_a_counter_that_appears_has_counted_from_nothing() -> None:
    """TensorRT-LLM's appear with the first answer of their kind."""
    text = page("tensorrt-llm")
    without = "\n".join(line for line in text.splitlines() if "request_success" not in line) + "\n"
    assert watched([without, text]).numbers["requests"] == 10


def vllm_page(requests: int, steps: int, seconds: float, running: int) -> str:
    """vLLM after some requests, each of whose answers took `seconds`."""
    histograms = (
        ("request_prefill_time_seconds", requests, 0.0), ("request_decode_time_seconds", requests, requests * seconds),
        ("iteration_tokens_total", steps, float(steps)), ("request_generation_tokens", requests, 10.0 * requests),
        ("request_prompt_tokens", requests, 100.0 * requests),
    )  # fmt: skip
    lines = [f"vllm:num_requests_running {running}", "vllm:num_requests_waiting 0"]
    for name, count, total in histograms:
        lines += [f"# TYPE vllm:{name} histogram", f'vllm:{name}_bucket{{le="+Inf"}} {count}']
        lines += [f"vllm:{name}_sum {total}", f"vllm:{name}_count {count}"]
    return "\n".join([*lines, f"# TYPE vllm:request_success counter\nvllm:request_success_total {requests}", ""])


def test_idle_time_between_requests_is_none_of_a_step() -> None:
    """One request of ten steps and 0.1 s a second: 10 ms a step; with two in flight all the time all of it is steps."""
    idle = [vllm_page(n, 10 * n, 0.1, 0) for n in range(5)]
    found, _ = observation(watched(idle), None)
    assert found.step_s == pytest.approx(0.01)
    busy = [vllm_page(n, 10 * n, 2.0, 2) for n in range(5)]
    found, _ = observation(watched(busy), None)
    assert found.step_s == pytest.approx(0.1)


def test_a_password_in_the_address_is_sent_and_not_kept(tmp_path: Path) -> None:
    text = page("sglang")
    with exporter([text, times(text, 2)], user="an:pass") as url:
        with pytest.raises(SpecError, match="answers 401"):
            flopwise.observe(url, seconds=0.2)
        found = flopwise.observe(url.replace("//", "//an:pass@"), seconds=0.2, interval_s=0.1, out=tmp_path)
    assert found.requests == 10
    assert found.url == f"{url}/metrics"
    assert "pass@" not in (tmp_path / "observation.json").read_text()


def test_messages_do_not_show_a_password() -> None:
    with pytest.raises(SpecError, match="cannot be reached") as error:
        flopwise.observe("http://an:secret@127.0.0.1:9", seconds=0.2)
    assert "secret" not in str(error.value)


def test_a_page_of_another_kind_at_the_usual_path_hides_no_other() -> None:
    """TensorRT-LLM has statistics as JSON at /metrics."""
    pages = {"/metrics": "[{}]", "/prometheus/metrics": page("tensorrt-llm")}
    url, engine, _ = engine_page(page_urls("engine:8000", FACTS), FACTS, lambda at: pages[at.split(":8000")[1]])
    assert (url, engine) == ("http://engine:8000/prometheus/metrics", "tensorrt-llm")


def test_an_engine_that_goes_away_and_comes_back_is_read_again() -> None:
    text = page("sglang")
    seen = watched([text, OSError("refused"), "no metrics {", times(text, 2)])
    assert seen.missed == 2
    assert seen.numbers["requests"] == 10


def test_an_engine_that_stays_away_is_an_error() -> None:
    with pytest.raises(SpecError, match="answered only once within"):
        watched([page("sglang"), OSError("refused")], seconds=3)


def test_a_stranger_is_named_by_what_it_has() -> None:
    with pytest.raises(SpecError, match=r"begin with: go.*--enable-metrics"):
        watched(["# TYPE go_threads gauge\ngo_threads 3\n"])
    with pytest.raises(SpecError, match="not Prometheus text"):
        watched(["<html>{</html>"])


def test_nobody_there_says_where_it_was_looked_for() -> None:
    with pytest.raises(SpecError, match=r"/metrics cannot be reached.*/prometheus/metrics"):
        watched([OSError("refused")])
    with pytest.raises(SpecError, match="is none of HTTP"):
        page_urls("ftp://x", FACTS)


def test_no_traffic_is_no_observation() -> None:
    with pytest.raises(SpecError, match="no request was answered"):
        observation(watched([page("sglang")] * 3), None)


def test_of_several_replicas_shares_are_means_and_counts_are_sums() -> None:
    text = "".join(
        f"# TYPE vllm:{name} gauge\n" + "".join(
            f'vllm:{name}{{engine="{rank}"}} {value}\n' for rank, value in enumerate(values))
        for name, values in (("kv_cache_usage_perc", (0.2, 0.6)), ("num_requests_running", (3, 5)))
    )  # fmt: skip
    assert dict(reading(page_series(text), "vllm", 0.0, FACTS).numbers) == {"cache": pytest.approx(0.4), "running": 8.0}


def test_negative_and_broken_numbers_are_left_out() -> None:
    text = page("sglang").replace('"m"} 10.0', '"m"} -4', 1)
    assert "requests" not in watched([text, text]).numbers


def test_a_real_server_is_read_where_its_engine_has_its_metrics() -> None:
    text = page("tensorrt-llm")
    with exporter([text, times(text, 2)], "/prometheus/metrics") as url:
        seen = watch_engine(url, 0.2, FACTS, interval_s=0.05)
    assert seen.engine == "tensorrt-llm"
    assert seen.numbers["requests"] == 10


def test_a_former_name_is_known() -> None:
    text = page("vllm").replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    seen = watched([text, times(text, 2)])
    assert "cache" in seen.readings[0].numbers
    assert seen.older_than == "0.10"
    assert any("older than vllm 0.10" in note for note in observation(seen, None)[0].notes)
    assert watched([page("vllm"), page("vllm")]).older_than is None
