"""Each format as the tools write it: what is read, under which names, in which units."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.records.imports.imported import FORMATS, read_file
from flopwise.records.imports.raw import RawRun

SAMPLES = Path(__file__).parent / "samples"
EXAMPLES = Path(__file__).parents[3] / "examples"


def only(path: Path, kind: str) -> RawRun:
    """The one run of a file, which is found to be of `kind`."""
    found, _, [run] = read_file(path, "auto")
    assert found == kind
    return run


def values(run: RawRun, name: str) -> list[float]:
    return [point.value for point in run.series[name]]


def test_vllm_bench_serve_with_its_requests() -> None:
    """Recorded with vLLM 0.32's own load generator against a server that plays answers."""
    path = EXAMPLES / "vllm-bench-serve.json"
    run, document = only(path, "vllm-bench"), json.loads(path.read_text())
    assert (run.task, run.model) == ("serve", "tiny-llama")
    assert run.settings == {
        "input_tokens": 12, "output_tokens": 16, "requests": 24, "concurrency": 4, "engine": "vllm"
    }  # fmt: skip
    assert values(run, "ttft_s") == document["ttfts"]
    assert values(run, "e2e_s") == document["latencies"]
    # as vLLM computes its TPOT: what follows the first token over the further tokens
    by_hand = [
        (e2e - ttft) / (tokens - 1)
        for e2e, ttft, tokens in zip(document["latencies"], document["ttfts"], document["output_lens"], strict=True)
    ]
    assert values(run, "itl_s") == pytest.approx(by_hand)
    assert values(run, "tokens_per_s") == [document["output_throughput"]]
    starts = [point.at_s or 0.0 for point in run.series["ttft_s"]]
    assert starts[1] - starts[0] == pytest.approx(document["start_times"][1] - document["start_times"][0], abs=1e-6)


def test_vllm_bench_serve_without_requests_has_means(tmp_path: Path) -> None:
    document = json.loads((EXAMPLES / "vllm-bench-serve.json").read_text())
    lists = {name for name, value in document.items() if isinstance(value, list)}
    plain = {name: value for name, value in document.items() if name not in lists} | {"max_concurrency": None}
    (tmp_path / "result.json").write_text(json.dumps(plain | {"request_rate": 2.5}))
    run = only(tmp_path / "result.json", "vllm-bench")
    assert values(run, "ttft_s") == [pytest.approx(plain["mean_ttft_ms"] / 1e3)]
    assert values(run, "itl_s") == [pytest.approx(plain["mean_tpot_ms"] / 1e3)]
    assert run.settings["rate"] == 2.5
    assert "concurrency" not in run.settings
    assert any("means only" in note for note in run.notes)


def test_guidellm_with_its_requests() -> None:
    """Recorded with guidellm 0.8.1 against its own server that plays answers; cut to six requests."""
    path = SAMPLES / "guidellm-benchmarks.json"
    run, one = only(path, "guidellm"), json.loads(path.read_text())["benchmarks"][0]
    requests = one["requests"]["successful"]
    assert (run.model, run.settings) == ("tiny-llama", {"input_tokens": 14, "output_tokens": 16, "concurrency": 4})
    assert run.software == {"guidellm": "0.8.1"}
    assert values(run, "ttft_s") == pytest.approx([r["time_to_first_token_ms"] / 1e3 for r in requests])
    assert values(run, "itl_s") == pytest.approx([r["inter_token_latency_ms"] / 1e3 for r in requests])
    assert values(run, "e2e_s") == pytest.approx([r["request_latency"] for r in requests])
    assert values(run, "tokens_per_s") == [one["metrics"]["output_tokens_per_second"]["successful"]["mean"]]


def test_guidellm_has_a_run_a_strategy(tmp_path: Path) -> None:
    document = json.loads((SAMPLES / "guidellm-benchmarks.json").read_text())
    second = json.loads(json.dumps(document["benchmarks"][0]))
    second["config"]["strategy"] = {"type_": "constant", "rate": 3.0}
    second["requests"]["successful"] = []
    document["benchmarks"].append(second)
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    _, _, [first, rated] = read_file(tmp_path / "sweep.json", "auto")
    assert first.name == "sweep-concurrent-1"
    assert rated.settings["rate"] == 3.0
    assert values(rated, "ttft_s") == [pytest.approx(0.031331519285837807)]  # its mean of 31.33 ms


def test_genai_perf_statistics_and_record(tmp_path: Path) -> None:
    statistics = {
        "request_throughput": {"unit": "requests/sec", "avg": 2.0},
        "request_latency": {"unit": "ms", "avg": 900.0, "p99": 1200.0},
        "time_to_first_token": {"unit": "ms", "avg": 80.0},
        "inter_token_latency": {"unit": "ms", "avg": 8.2},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 200.0},
        "output_sequence_length": {"unit": "tokens", "avg": 100.4},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "input_config": {"model": ["meta/llama-3.1-8b"], "perf_analyzer": {"stimulus": {"concurrency": 8}}},
    }
    (tmp_path / "profile_export_genai_perf.json").write_text(json.dumps(statistics))
    run = only(tmp_path / "profile_export_genai_perf.json", "genai-perf")
    assert run.model == "meta/llama-3.1-8b"
    assert run.settings == {"input_tokens": 550, "output_tokens": 100, "concurrency": 8}
    assert values(run, "ttft_s") == [pytest.approx(0.08)]
    assert values(run, "itl_s") == [pytest.approx(0.0082)]
    record = {
        "experiments": [
            {
                "experiment": {"mode": "concurrency", "value": 2},
                "requests": [
                    {"timestamp": 10**18, "response_timestamps": [10**18 + 5 * 10**7 + n * 10**7 for n in range(5)]},
                    {"timestamp": 10**18, "response_timestamps": []},
                ],
                "window_boundaries": [],
            }
        ],
        "version": "2.59",
    }
    (tmp_path / "profile_export.json").write_text(json.dumps(record))
    run = only(tmp_path / "profile_export.json", "genai-perf")
    assert values(run, "ttft_s") == [pytest.approx(0.05)]
    assert values(run, "itl_s") == [pytest.approx(0.01)]
    assert values(run, "e2e_s") == [pytest.approx(0.09)]
    assert run.settings == {"concurrency": 2, "output_tokens": 5}


def test_trainer_state_with_and_without_times(tmp_path: Path) -> None:
    lines = [
        {"epoch": 0.1 * n, "loss": 3.0 - n, "grad_norm": 1.5, "learning_rate": 1e-4, "step": 10 * n,
         "num_input_tokens_seen": 1000 * n, "train_runtime": 7.0 * n, "train_tokens_per_second": 142.9}
        for n in (1, 2, 3)
    ]  # fmt: skip
    state = {"log_history": lines, "global_step": 30, "max_steps": 30, "train_batch_size": 4}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = only(tmp_path / "trainer_state.json", "trainer-state")
    assert [p.at_s - run.started_at_s for p in run.series["loss"]] == pytest.approx([7.0, 14.0, 21.0])  # type: ignore[operator]
    assert run.settings == {"micro_batch": 4}
    assert run.finished
    plain = [{k: v for k, v in line.items() if k in ("loss", "step")} for line in lines]
    plain.append({"eval_loss": 1.0, "eval_runtime": 5.0, "step": 30})
    plain.append(
        {"step": 30, "train_loss": 1.0, "train_runtime": 65.0, "train_steps_per_second": 0.4615, "total_flos": 1}
    )
    (tmp_path / "trainer_state.json").write_text(json.dumps(state | {"log_history": plain, "max_steps": 60}))
    run = only(tmp_path / "trainer_state.json", "trainer-state")
    assert values(run, "step_s") == [pytest.approx((65.0 - 5.0) / 30)]  # the evaluation's 5 s are no steps
    assert [event.kind for event in run.events] == ["evaluation"]
    assert not run.finished


def test_trainer_state_that_was_resumed_counts_the_steps_of_its_session(tmp_path: Path) -> None:
    lines = [{"loss": 1.0, "step": 900}, {"loss": 0.9, "step": 1000}]
    summary = {"step": 1000, "train_runtime": 200.0, "train_steps_per_second": 0.5}  # 100 steps of its own
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": [*lines, summary], "global_step": 1000, "max_steps": 1000})
    )
    run = only(tmp_path / "trainer_state.json", "trainer-state")
    assert values(run, "step_s") == [pytest.approx(2.0)]


@pytest.mark.parametrize(
    ("samples_per_s", "step", "sequences"),
    [
        (4.0, 300, 8),  # 4.0 x 600 s / 300 steps
        (3.93, 300, 8),  # 7.86: last batches of epochs were not whole
        (16.0, 300, 32),  # four micro-batches of 8
        (4.0, 1200, None),  # resumed: the time of 300 steps, of 1,200 in all
        (0.3, 300, None),  # 0.6 of a sequence
    ],
)
def test_trainer_state_tells_the_sequences_of_a_step(
    tmp_path: Path, samples_per_s: float, step: int, sequences: int | None
) -> None:
    summary = {
        "step": step, "train_loss": 1.0, "train_runtime": 600.0, "train_steps_per_second": 0.5,
        "train_samples_per_second": samples_per_s,
    }  # fmt: skip
    lines = [{"loss": 1.0, "step": 100}, summary]
    state = {"log_history": lines, "global_step": step, "max_steps": step, "train_batch_size": 8}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = only(tmp_path / "trainer_state.json", "trainer-state")
    assert run.settings.get("global_batch") == sequences


def test_wandb_history_and_chart(tmp_path: Path) -> None:
    history = (
        "_step,_timestamp,_runtime,train/loss,system.gpu.0.powerWatts\n"
        "5,1700000005.5,5,2.5,300\n6,1700000007.5,7,NaN,\n"
    )
    (tmp_path / "history.csv").write_text(history)
    run = only(tmp_path / "history.csv", "wandb")
    assert [(p.at_s, p.step) for p in run.series["train/loss"]] == [(1700000005.5, 5), (1700000007.5, 6)]
    assert values(run, "system.gpu.0.powerWatts") == [300.0]
    chart = (
        '"Step","a - run - train/loss","a - run - train/loss__MIN","a - run - train/loss__MAX","b - train/loss",'
        '"b - train/loss__MIN","b - train/loss__MAX"\n"1","3.0","2.9","3.1","","",""\n'
        '"2","2.0","1.9","2.1","4","4","4"\n'
    )
    (tmp_path / "chart.csv").write_text(chart)
    kind, _, runs = read_file(tmp_path / "chart.csv", "auto")
    assert kind == "wandb"
    assert {run.name: values(run, "train/loss") for run in runs} == {"a - run": [3.0, 2.0], "b": [4.0]}
    (tmp_path / "epochs.csv").write_text(chart.replace('"Step"', '"epoch"'))
    with pytest.raises(SpecError, match="neither steps nor times"):
        read_file(tmp_path / "epochs.csv", "auto")


def test_mlflow_history_by_runs(tmp_path: Path) -> None:
    rows = ["x,loss,2.0,1700000000000,1", "x,loss,1.5,1700000002000,2", "y,loss,9,1700000000000,1"]
    text = "\n".join(["run_id,key,value,timestamp,step", *rows])
    (tmp_path / "metrics.csv").write_text(text)
    kind, _, [first, second] = read_file(tmp_path / "metrics.csv", "auto")
    assert kind == "mlflow"
    assert [(p.at_s, p.step, p.value) for p in first.series["loss"]] == [(1.7e9, 1, 2.0), (1.7e9 + 2, 2, 1.5)]
    assert values(second, "loss") == [9.0]


def written_events(folder: Path, count: int) -> Path:
    """An event file of tensorboard's own writer, with `count` scalars a second apart."""
    events = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summaries = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writing = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    writer = writing.EventFileWriter(str(folder))
    for step in range(count):
        value = summaries.Summary.Value(tag="train/loss", simple_value=3.0 - step)
        writer.add_event(events.Event(wall_time=1.7e9 + step, step=step, summary=summaries.Summary(value=[value])))
    writer.close()
    [file] = folder.iterdir()
    return file


def test_tensorboard_events_of_a_folder(tmp_path: Path) -> None:
    written_events(tmp_path, 3)
    run = only(tmp_path, "tensorboard")
    assert [(p.at_s, p.step, p.value) for p in run.series["train/loss"]] == [
        (1.7e9, 0, 3.0), (1.7e9 + 1, 1, 2.0), (1.7e9 + 2, 2, 1.0),
    ]  # fmt: skip


def test_the_events_of_a_real_training() -> None:
    """Recorded by the Trainer of transformers 5 with tensorboard: GPT-2 on a busy CPU, stopped after 22 steps."""
    pytest.importorskip("tensorboard")
    run = only(SAMPLES / "events.out.tfevents.1795387775.trainer", "tensorboard")
    assert [point.step for point in run.series["train/loss"]] == list(range(1, 23))
    seen = [128.0 * step for step in range(1, 23)]  # 2 x 64 tokens
    assert values(run, "train/num_input_tokens_seen") == [*seen[:12], *seen[11:]]  # the evaluation logs them, too
    assert [point.step for point in run.series["eval/loss"]] == [12]
    times = [point.at_s or 0.0 for point in run.series["train/loss"]]
    # the Trainer's own clock says the same as the times of the events
    own = values(run, "train/train_runtime")
    assert times[-1] - times[0] == pytest.approx(own[-1] - own[0], abs=0.5)


def test_a_truncated_event_file_is_read_up_to_where_it_breaks_off(tmp_path: Path) -> None:
    file = written_events(tmp_path, 5)
    file.write_bytes(file.read_bytes()[:-7])
    run = only(file, "tensorboard")
    assert values(run, "train/loss") == [3.0, 2.0, 1.0, 0.0]
    assert any("cut off after" in note for note in run.notes)


def test_a_damaged_event_is_left_out_and_a_damaged_length_ends_the_file(tmp_path: Path) -> None:
    file = written_events(tmp_path, 5)
    data = bytearray(file.read_bytes())
    places, place = list[int](), 0
    while place < len(data):
        places.append(place)
        place += 16 + struct.unpack_from("<Q", data, place)[0]
    data[places[3] + 14] ^= 0xFF  # within the third scalar (the first record names the version)
    file.write_bytes(bytes(data))
    run = only(file, "tensorboard")
    assert values(run, "train/loss") == [3.0, 2.0, 0.0, -1.0]
    assert any("1 damaged events" in note for note in run.notes)
    data[places[4]] ^= 0xFF
    file.write_bytes(bytes(data))
    run = only(file, "tensorboard")
    assert values(run, "train/loss") == [3.0, 2.0]
    assert any(f"damaged at byte {places[4]}" in note for note in run.notes)


def test_an_event_file_without_an_event_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1700000000.host"
    file.write_bytes(b"not an event file at all")
    with pytest.raises(SpecError, match="no event can be read"):
        read_file(file, "auto")
    file.write_bytes(b"")
    with pytest.raises(SpecError, match="is empty"):
        read_file(file, "auto")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "not in a known format"), ("{}", "not in a known format"),
        ('{"log_history": 3', "not in a known format"),
        ("", "is empty"), ("key,value,timestamp,step\n", "no values of any metric"),
        ("key,value,timestamp,step\nloss,1,2\n", "line 2: 3 cells under a header of 4"),
        ('key,value,timestamp,step\nloss,"1\n', "broken CSV"), ("\0\0\0\1binary", "not in a known format"),
        ("_step,_step,_timestamp\n1,1,1\n", "more than once"),
    ],
)  # fmt: skip
def test_a_foreign_or_broken_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "file.csv").write_text(text)
    with pytest.raises(SpecError, match=reason):
        read_file(tmp_path / "file.csv", "auto")


def test_a_format_that_is_named_has_to_be_the_files(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("key,value,timestamp,step\nloss,1,1700000000,1\n")
    with pytest.raises(SpecError, match="not in the format wandb"):
        read_file(tmp_path / "metrics.csv", "wandb")
    with pytest.raises(UnknownNameError, match="Allowed: auto"):
        read_file(tmp_path / "metrics.csv", "excel")
    with pytest.raises(SpecError, match="no such file"):
        read_file(tmp_path / "nothing.csv", "auto")
    assert set(FORMATS) == {
        "trainer-state", "tensorboard", "wandb", "mlflow", "guidellm", "genai-perf", "vllm-bench",
    }  # fmt: skip
