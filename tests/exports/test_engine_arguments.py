"""Flags and metrics of engines: that released packages say what the tables do, how they are read, what is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import record_engines
from engine_arguments import TABLES, engine_args, flags, rows, series
from record_engines import Sources
from tools import RefusedError

ENGINES = ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "lmdeploy", "tgi", "tei"]


@pytest.mark.exports
@pytest.mark.parametrize("engine", ["sglang", "lmdeploy", *record_engines.ROUTERS])
def test_the_released_package_says_the_same(engine: str) -> None:
    """vLLM's is asked in `test_vllm_server`, where its parser is loaded."""
    the_tables_are_those_of_the_package(engine, record_engines.ENGINES[engine].flags(record_engines.package(engine)))


def the_tables_are_those_of_the_package(engine: str, listed: Iterable[record_engines.Flag]) -> None:
    """The release, its flags and its metrics."""
    source = record_engines.package(engine)
    (release,) = rows("releases", engine)
    assert list(source.glob(f"{engine.replace('-', '_')}*-{release['version']}.dist-info")), (
        "another version: see the Makefile"
    )
    assert _recorded("flags", engine) == record_engines.flag_rows(engine, listed)
    assert _recorded("metrics", engine) == record_engines.metric_rows(engine, source)


def _recorded(table: str, engine: str) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in {"version", "source", "date"}} for row in rows(table, engine)]


FIELDS = """
from sglang.srt.arg_groups.choices import KINDS as CHOSEN

class Serving(Struct):
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    trust: A[bool, "x"] = False
    stop: A[Optional[List[int]], "x"] = None
    backend: A[Optional[str], Arg(help="x", choices=CHOSEN + ["mine"])] = None
    mode: A[Literal["one", "two"], "x"] = "one"
    lora: A[Optional[list], Arg(help="x", action=LoRA, action_kwargs={"nargs": "*"})] = None
    level: A[int, Arg(help="x", cli_name="--the-level", type_parser=human)] = 1
    hidden: A[bool, Arg(help="x", no_cli=True)] = False
    inner: int = 5
"""
PARSER = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--config", type=str)
        parser.add_argument("--old", action=DeprecatedStoreTrueAction, new_flag="--new")
"""
CHOICES = 'KINDS = ["b", "a"]\n'


def test_flags_are_read_from_records_of_arguments() -> None:
    sources = Sources({
        "sglang/srt/arg_groups/fields/serving.py": FIELDS, "sglang/srt/arg_groups/choices.py": CHOICES,
        "sglang/srt/server_args.py": PARSER,
    })  # fmt: skip
    assert {tuple(flag) for flag in record_engines.sglang_flags(sources)} == {
        ("--model-path", "one", ()), ("--model", "one", ()), ("--trust", "none", ()), ("--stop", "many", ()),
        ("--backend", "one", ("a", "b", "mine")), ("--mode", "one", ("one", "two")), ("--lora", "many", ()),
        ("--the-level", "one", ()), ("--config", "one", ()), ("--old", "none", ()),
    }  # fmt: skip


CLIENT = """
labelnames = ["model_name", "engine"]
self.waiting = self._gauge_cls(name="vllm:waiting", labelnames=labelnames + ["reason"])
self.tokens = Counter(name="vllm:tokens", labelnames=labelnames)
self.latency = prometheus_client.Histogram("vllm:latency_seconds", "x", labelnames=labels.keys())
self.other = Gauge(name="other:waiting")
self.built = Gauge(name=f"vllm:{part}")
"""


def test_metrics_are_read_from_clients() -> None:
    metrics = record_engines.client_metrics(Sources({"vllm/metrics.py": CLIENT}), "vllm:")
    assert {tuple(metric) for metric in metrics} == {
        ("vllm:waiting", "gauge", ("model_name", "engine", "reason")),
        ("vllm:tokens_total", "counter", ("model_name", "engine")), ("vllm:latency_seconds", "histogram", ()),
    }  # fmt: skip


PAGE = """
| Argument | Explanation |
| `-fa, --flash-attn [on\\|off\\|auto]` | set Flash Attention |
| `-ctk, --cache-type-k TYPE` | KV cache type<br/>allowed values: f32, f16, q8_0<br/>(default: f16) |
| `--mmap, --no-mmap` | whether to map the file |
| `llamacpp:requests_deferred` | Gauge | Number of requests deferred. |
| `llamacpp:accepted_total` | Counter | Accepted (labeled `position="N"`). |
"""


def test_flags_and_metrics_are_read_from_a_page() -> None:
    sources = Sources({"vendor/llama.cpp/tools/server/README.md": PAGE})
    assert {tuple(flag) for flag in record_engines.llama_cpp_flags(sources)} == {
        ("-fa", "one", ("auto", "off", "on")), ("--flash-attn", "one", ("auto", "off", "on")),
        ("-ctk", "one", ("f16", "f32", "q8_0")), ("--cache-type-k", "one", ("f16", "f32", "q8_0")),
        ("--mmap", "none", ()), ("--no-mmap", "none", ()),
    }  # fmt: skip
    assert [tuple(metric) for metric in record_engines.llama_cpp_metrics(sources)] == [
        ("llamacpp:requests_deferred", "gauge", ()), ("llamacpp:accepted_total", "counter", ("position",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("vllm", "serve org/model --tensor-parallel-size 8 --kv-cache-dtype fp8 --max-num-seqs=256 --no-enforce-eager"),
        (
            "sglang",
            "--model-path org/model --tp-size 8 --schedule-policy lpm --chunked-prefill-size -1",
        ),
        ("tensorrt-llm", "serve org/model --tp_size 8 --max_batch_size 64 --backend pytorch --config extra.yaml"),
        ("llama.cpp", "-m model.gguf -c 8192 --parallel 8 -ngl 99 --flash-attn on --metrics"),
        ("lmdeploy", "serve api_server org/model --tp 2 --quant-policy 8 --session-len 8192"),
        ("tgi", "--model-id org/model --num-shard 2 --quantize fp8 --max-total-tokens 8192 --sharded true"),
    ],
)
def test_commands_that_engines_take(engine: str, command: str) -> None:
    engine_args(engine, command.split())


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--tensor-paralel-size 8", "is no flag"),
        ("--tensor-parallel-size", "takes one value"),
        ("--tensor-parallel-size 8 9", "takes one value"),
        ("--enforce-eager true", "takes none value"),
        ("--kv-cache-dtype int3", "no choice"),
        ("--kv-cache-dtype=int3", "no choice"),
        ("model --max-num-seqs --enforce-eager", "takes one value"),
    ],
)
def test_arguments_that_an_engine_refuses(arguments: str, fault: str) -> None:
    with pytest.raises(RefusedError, match=fault):
        engine_args("vllm", arguments.split())


def test_an_unknown_engine_takes_nothing() -> None:
    with pytest.raises(RefusedError, match="no flags of hf"):
        engine_args("hf", [])


def test_metrics_are_stored_as_series() -> None:
    assert {
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",
    } <= series("vllm")
    assert "vllm:time_to_first_token_seconds" not in series("vllm")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_is_of_the_release_and_has_a_source(engine: str) -> None:
    (release,) = rows("releases", engine)
    assert flags(engine)
    assert series(engine)
    assert {row["version"] for row in rows("flags", engine)} == {release["version"]}
    for row in (*rows("flags", engine), *rows("metrics", engine), release):
        assert row["source"]
        assert row["date"].startswith("2026-")


def test_the_tables_hold_these_engines_alone() -> None:
    for table in ("releases", "flags", "metrics"):
        lines = (TABLES / f"{table}.csv").read_text(encoding="utf-8").splitlines()[1:]
        engines = ENGINES if table == "metrics" else [*ENGINES, *record_engines.ROUTERS]
        assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == engines
