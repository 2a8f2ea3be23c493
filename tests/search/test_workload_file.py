import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from flopwise.errors import SpecError
from flopwise.search.workload import schema
from flopwise.search.workload_file import parse_workload, read_workload, workload_from
from flopwise.training.spec import divisible_batch

GOOD = """\
name: chat
model: Llama-3.1-70B
task: serve
traffic:
  requests_per_s: 20
  input_tokens: 1k
  output_tokens: 250
targets:
  ttft: {p95: 1s}
  tpot: 50ms
  budget: $30k
constraints:
  providers: [aws]
  purchase: [spot, on_demand]
"""


def test_quantities_become_base_units() -> None:
    resolved = parse_workload(GOOD)
    assert resolved.requests_per_s == 20
    assert resolved.input_tokens == 1000
    assert resolved.ttft is not None
    assert (resolved.ttft.percentile, resolved.ttft.seconds) == ("p95", 1.0)
    assert resolved.tpot is not None
    assert resolved.tpot.seconds == pytest.approx(0.05)
    assert resolved.budget_usd == 30_000
    assert resolved.confidence == 0.8


def test_tokens_from_samples_and_epochs() -> None:
    resolved = workload_from(
        {"model": "7B", "task": "finetune", "data": {"samples": "10k", "seq_len": 2048, "epochs": 3}}
    )
    assert resolved.tokens == 10_000 * 2048 * 3


def test_batch_from_tokens() -> None:
    resolved = workload_from(
        {"model": "7B", "task": "pretrain", "data": {"tokens": "1T", "seq_len": 4096, "global_batch_tokens": "4M"}}
    )
    assert (resolved.data.global_batch, resolved.data.global_batch_tokens) == (None, 4e6)
    assert divisible_batch(4e6 / 4096) == 1024  # 977 would leave ranks nothing to share


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("model: a\ntask: serve\ntrafic:\n  requests_per_s: 1\n", 3, "unknown key 'trafic'"),
        ("model: a\ntask: serve\ntraffic: {rate: 1}\n", 3, "nearest: traffic.requests_per_s (--rate of commands)"),
        ("model: a\ntask: serve\ntraffic:\n  requests_per_s: fast\n", 4, "not a quantity"),
        ("model: a\ntask: serve\ntraffic:\n  requests_per_s: -1\n", 4, "allowed: above 1 in 31,688 years"),
        ("model: a\ntask: sing\n", 2, "not one of"),
        ("model: a\ntask: serve\ntraffic: 5\n", 3, "expected a mapping"),
        ("model: a\ntask: serve\ntraffic:\n  concurrency: 2\ntargets:\n  ttft: {p77: 1s}\n", 6, "p77"),
        (
            "model: a\ntask: serve\ntraffic:\n  concurrency: 2\ntargets:\n  ttft: {p50: 1s, p95: 2s}\n",
            6,
            "one percentile",
        ),
        ("model: a\ntask: pretrain\ndata:\n  tokens: 1T\n  samples: 5\n", 5, "give one of them"),
        ("model: a\ntask: pretrain\ndata:\n  tokens: .nan\n", 4, "not finite"),
        ("model: a\ntask: pretrain\ndata:\n  tokens: 1T\nrouting:\n  expert_skew: 0.5\n", 6, "allowed: 1 or more"),
        ("model: a\ntask: finetune\ndata:\n  tokens: 1M\n  packing: packed\n", 5, "needs mean_length"),
        ("model: a\ntask: finetune\ndata:\n  tokens: 1M\n  packing: up\n", 5, "not one of"),
        ("model: a\ntask: pretrain\ndata: {tokens: 1T}\nrouting:\n  capacity_factor: 0\n", 5, "0.01 or more"),
        ("model: a\ntask: serve\ntraffic: {concurrency: 2}\nrouting: {expert_skew: 2}\n", 4, "no meaning"),
        ("model: a\n  task: pretrain\n", 2, "not valid YAML"),
        ("a: &x 1\nb: *x\n", 2, "aliases"),
        ("- 1\n- 2\n", 1, "mapping"),
        ("model: a\ntask: serve\nmodel: b\n", 3, "given twice"),
        ("model: a\ntask: serve\ntraffic:\n  concurrency: 2\ntargets:\n  confidence: 7\n", 6, "up to 0.99"),
        (
            "model: a\ntask: serve\ntraffic:\n  concurrency: 2\nconstraints:\n  min_gpus: 8\n  max_gpus: 4\n",
            6,
            "more than max_gpus",
        ),
    ],
)
def test_complaints_name_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_workload(text, "w.yaml")
    message = str(caught.value)
    assert message.startswith(f"w.yaml:{line}:"), message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("task", "missing"), [("pretrain", "data.tokens"), ("serve", "requests_per_s"), ("batch", "traffic.requests")]
)
def test_each_task_says_what_it_needs(task: str, missing: str) -> None:
    with pytest.raises(SpecError, match=missing):
        workload_from({"model": "7B", "task": task})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"task": "pretrain", "data": {"tokens": "1T"}, "targets": {"ttft": "1s"}}, "targets.ttft"),
        ({"task": "pretrain", "data": {"tokens": "1T"}, "method": {"kind": "lora"}}, "method"),
        ({"task": "finetune", "data": {"tokens": "1T"}, "constraints": {"engine": "vllm"}}, "constraints.engine"),
        ({"task": "serve", "traffic": {"concurrency": 1}, "optimizer": "lion"}, "optimizer"),
        ({"task": "serve", "traffic": {"concurrency": 1}, "data": {"tokens": 5}}, "data"),
        ({"task": "serve", "traffic": {"concurrency": 1}, "targets": {"deadline": "1d"}}, "targets.deadline"),
        ({"task": "encode", "traffic": {"requests_per_s": 1}, "targets": {"tpot": "1s"}}, "targets.tpot"),
    ],
)
def test_what_has_no_meaning_for_the_task_is_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(SpecError, match=f"{named}: has no meaning"):
        workload_from({"model": "7B", **change})


def test_files_that_are_no_workloads(tmp_path: Path) -> None:
    binary = tmp_path / "w.yaml"
    binary.write_bytes(b"\x80\x04\x95\xff\xfe")
    with pytest.raises(SpecError, match="not a text file"):
        read_workload(binary)
    with pytest.raises(SpecError, match="cannot be read"):
        read_workload(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 1_000_001)
    with pytest.raises(SpecError, match="larger than"):
        read_workload(large)


def test_options_are_laid_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    resolved = read_workload(file, {"traffic": {"requests_per_s": "5"}, "objective": "time"})
    assert resolved.requests_per_s == 5
    assert resolved.input_tokens == 1000
    assert resolved.objective == "time"


def test_the_published_schema_is_the_one_that_validates() -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "workload.schema.json").read_text())
    assert published == schema()


def test_the_schema_takes_what_the_reader_takes() -> None:
    import jsonschema
    import yaml

    jsonschema.validate(yaml.safe_load(GOOD), schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "a", "task": "serve", "trafic": {}}, schema())


@pytest.mark.parametrize("software", ["any", ["any"]])
def test_one_text_stands_for_a_list_of_it(software: object) -> None:
    document = yaml.safe_load(GOOD) | {"software": software}
    assert workload_from(document).limits.software == ("any",)
    jsonschema.validate(document, schema())
    with pytest.raises(SpecError, match="software: 'some' is not one of"):
        workload_from(document | {"software": "some"})
