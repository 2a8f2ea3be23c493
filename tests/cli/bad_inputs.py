"""The table of malformed inputs: made from each command's own options and types, and from files that are broken.

A case is a command line and the files it finds in its folder. BASES are command lines that answer; a case
changes one thing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from bad_fleets import fleets

from flopwise.cli.app import COMMANDS, app
from flopwise.cli.options import Value
from flopwise.options import FILE

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
CONFIG = json.dumps(LLAMA).encode()
WORKLOAD = b"""\
model: config.json
task: serve
traffic: {requests_per_s: 2}
targets: {tpot: 50ms}
constraints: {gpus: [h100]}
"""
TRAINING = b"""\
model: config.json
task: pretrain
data: {tokens: 1G, seq_len: 1k}
constraints: {gpus: [h100], max_gpus: 8}
"""
FLEET = b"""\
name: platform
workloads:
  - {name: chat, task: serve, model: config.json, traffic: {requests_per_s: 2}, constraints: {gpus: [h100]}}
  - {name: desks, task: develop, environment: development, machines: {count: 1, memory: 16GB}}
own_machines:
  - {name: box, gpu: h100, gpus: 2, count: 1, network: 100Gbps, tags: [gdpr], site: {colocation: true, pue: 1.3}}
"""
CANDIDATE: dict[str, Any] = {
    "rank": 1,
    "provider": "aws",
    "region": "us-east-1",
    "instance": "p5.4xlarge",
    "num_instances": 1,
    "gpu": "H100-SXM-80",
    "num_gpus": 1,
    "purchase": "on_demand",
    "layout": {
        "tp": 1, "pp": 1, "ep": 1, "dp": 1, "replicas": 1, "max_batch": 8, "weights": "bf16", "kv_dtype": "bf16",
        "engine": "vllm",
    },
    "seconds": 1.0,
    "usd_per_hour": 7.0,
    "cost_usd": 5000.0,
    "energy_joules": None,
    "meets": {},
    "figures": {},
    "memory_bytes": 1e9,
    "capacity_bytes": 8e10,
    "price_date": "2026-07-20",
    "price_source": "a list",
}  # fmt: skip
PLAN: dict[str, Any] = {
    "workload": {"model": "config.json", "task": "serve", "traffic": {"requests_per_s": 2}},
    "task": "serve",
    "objective": "cost",
    "plans": [CANDIDATE],
    **{name: [] for name in ("front", "misses", "ruled_out", "levers", "assumptions")},
    "evaluated": 1,
    "elapsed_s": 0.1,
}
HELD = b"""\
name: platform
workloads:
  - name: chat
    task: serve
    model: config.json
    traffic: {requests_per_s: 2, input_tokens: 200, output_tokens: 50}
    existing: [{instance: p5.48xlarge}]
"""
CSV = b"id,model,format,bytes,kind\n1,config.json,BF16,3000000,checkpoint\n"
PRICES = b"instance_name,location,price,gpu_count,gpu_name,spot\np5.48xlarge,us-east-1,50,8,H100,False\n"
LOAD = {
    "start_times": [0.0, 1.0],
    "ttfts": [0.1] * 2,
    "itls": [[0.02]] * 2,
    "input_lens": [9] * 2,
    "output_lens": [2] * 2,
}
"""What `vllm bench serve` says of two requests."""
GOOD_FILES = {
    "config.json": CONFIG,
    "work.yaml": WORKLOAD,
    "train.yaml": TRAINING,
    "rows.csv": CSV,
    "aws.csv": PRICES,
    "fleet.yaml": FLEET,
    "held.yaml": HELD,
    "plan.json": json.dumps(PLAN).encode(),
    "load.json": json.dumps(LOAD).encode(),
}

COMPARED = (
    "--tokens-per-month", "1G", "--api-price", "1/2", "--gpu", "h100", "--way", "api", "--way", "open",
    "--way", "finetune", "--no-simulate",
)  # fmt: skip
BASES: dict[str, tuple[str, ...]] = {
    "models": ("models", "config.json"),
    "gpus": ("gpus",),
    "instances": ("instances",),
    "completion": ("completion", "bash"),
    "fit": ("fit", "config.json", "--gpu", "h100", "--context", "1024"),
    "memory": ("memory", "config.json", "--task", "train", "--gpu", "h100"),
    "train": ("train", "config.json", "--gpu", "h100", "--gpus", "8"),
    "serve": ("serve", "config.json", "--gpu", "h100"),
    "simulate": ("simulate", "config.json", "--gpu", "h100", "--rate", "5", "--requests", "20"),
    "io": ("io", "config.json", "--gpu", "h100", "--dataset", "1TB"),
    "roofline": ("roofline", "--flops", "1e15", "--bytes", "1e12", "--gpu", "h100"),
    "plan": ("plan", "work.yaml"),
    "compare": ("compare", "config.json", *COMPARED),
    "assess": ("assess", "fleet.yaml", "--scenarios", "20"),
    "check": ("check", "held.yaml"),
    "explain": ("explain", "serve", "config.json", "--gpu", "h100"),
    "backtest": ("backtest", "weights", "rows.csv"),
    "calibrate": ("calibrate", "rows.csv", "--dry-run"),
    "probe": ("probe", "--only", "launch", "--quick"),
    "watch": ("watch", "--rules"),
    "observe": ("observe", "--load", "load.json", "--for", "1s"),
    "prices": ("prices", "age"),
    "runs": ("runs", "list"),
    "web": ("web", "--openapi"),
    "export": ("export", "vllm", "plan.json", "-o", "out"),
}

SIMULATE = BASES["simulate"]
QUEUED = ("simulate", "config.json", "--gpu", "h100", "--queue", "100", "--spot-interruptions", "0.1/day")
SCALED = (*SIMULATE, "--autoscale", "concurrency", "--max-replicas", "4")
CACHED = (*SIMULATE, "--response-cache", "10", "--distinct", "20")
STRAYS = (
    "--target 8",
    "--min-replicas 2",
    "--cool-down 1min",
    "--cold-start 1min",
    "--attain 0.9",
    "--deadline 1h",
    "--workers 3",
    "--fallback 2",
    "--distinct 5",
    "--skew 1",
    "--cache-ttl 1h",
    "--response-cache 5",
    "--autoscale kv --replicas 3",
    "--autoscale kv --min-replicas 5 --max-replicas 2",
    "--autoscale kv --target 3",
    "--autoscale kv --attain 0.9",
    "--autoscale kv --prefill-replicas 1",
    "--autoscale concurency",
    "--autoscale kv --tick 1ms",
    "--autoscale kv --cold-start 2000h",
    "--users 3",
    "--trace missing.csv",
    "--response-cache 5 --distinct 9 --vertical",
    "--queue 10",
)
QUEUE_STRAYS = (
    "--rate 2",
    "--replicas 2",
    "--autoscale kv",
    "--response-cache 5",
    "--ttft 1s",
    "--policy fcfs",
    "--vertical",
    "--fallback 2",
    "--checkpoint-time 5s",
    "--purchase on_demand",
    "--spot-interruptions 1/s",
    "--lengths-from rows.csv",
    "--input 5:1",
)

CONTRADICTIONS: tuple[tuple[str, ...], ...] = (
    ("memory",), ("train",), ("serve",), ("roofline",), ("plan",), ("backtest",), ("backtest", "weights"),
    ("observe",), ("observe", "ftp://x"), ("observe", "http://127.0.0.1:1"), ("observe", "--load", "none.json"),
    ("observe", "--load", "rows.csv"), ("simulate", "config.json", "--gpu", "h100", "--replay", "no-such-folder"),
    ("simulate",), ("simulate", "config.json"), ("explain",), ("assess",), ("compare",), ("compare", "config.json"),
    ("memory", "no-such-model-anywhere"), ("train", "no-such-model-anywhere", "--gpu", "h100"), ("memory", "0B"),
    ("serve", "no-such-model-anywhere", "--gpu", "h100"), ("train", "config.json"), ("serve", "config.json"),
    ("io",), ("io", "config.json"), ("io", "--gpu", "h100"), ("io", "no-such-model-anywhere", "--gpu", "h100"),
    ("io", "--gpu", "h100", "--flops-per-sample", "1T"), ("io", "--gpu", "h100", "--sample-bytes", "1MB"),
    ("io", "config.json", "--gpu", "h100", "--cache", "1GB"),
    ("io", "tiramisu", "--gpu", "v100", "--records=compressed"),
    ("io", "config.json", "--gpu", "h100", "--achieved", "1T", "--efficiency", "0.5"),
    ("io", "tiramisu", "--gpu", "v100", "--restore-within", "5min"),
    ("roofline", "--gpu", "h100"), ("roofline", "--flops", "1e15", "--bytes", "1e12"), ("plan", "config.json"),
    ("roofline", "--flops", "1e15", "--bytes", "1e12", "--gpu", "h100", "--dtype", "fp3"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--tp", "3"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--tp", "16"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--dp", "3"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--pp", "4", "--dp", "4"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--zero", "4"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--shard", "3"),
    ("memory", "config.json", "--dp", "8", "--zero", "0", "--shard", "4"),
    ("train", "config.json", "--gpu", "h100", "--expert-skew", "2"),
    ("train", "Qwen3-30B-A3B", "--gpu", "h100", "--gpus", "8", "--expert-skew", "0.5"),
    ("train", "Qwen3-30B-A3B", "--gpu", "h100", "--gpus", "8", "--expert-skew", "17"),
    ("train", "Qwen3-30B-A3B", "--gpu", "h100", "--gpus", "8", "--capacity-factor", "0"),
    ("memory", "Qwen3-30B-A3B", "--task", "train", "--seq", "64"),
    ("train", "config.json", "--gpu", "h100", "--freeze", "heads"),
    ("train", "config.json", "--gpu", "h100", "--freeze", "first:1000"),
    ("train", "config.json", "--gpu", "h100", "--freeze", "embedding", "--lora", "8"),
    ("train", "config.json", "--gpu", "h100", "--packing", "packed"),
    ("train", "config.json", "--gpu", "h100", "--mean-length", "10"),
    ("train", "config.json", "--gpu", "h100", "--packing", "padded", "--mean-length", "10M"),
    ("train", "config.json", "--gpu", "h100", "--packing", "padded", "--lengths", "missing.txt"),
    ("train", "config.json", "--gpu", "h100", "--packing", "padded", "--mean-length", "10", "--length-spread", "-1"),
    ("train", "config.json", "--gpu", "h100", "--gpus", "8", "--lora", "8", "--lora-targets", "nothing"),
    ("serve", "config.json", "--gpu", "h100", "--tp", "3"),
    ("serve", "config.json", "--gpu", "h100", "--gpus", "3", "--tp", "2"),
    ("serve", "config.json", "--gpu", "h100", "--concurrency", "4", "--rate", "5"),
    ("serve", "config.json", "--gpu", "h100", "--input", "99M"),
    ("serve", "config.json", "--gpu", "h100", "--shared-prefix", "2000"),
    ("serve", "config.json", "--gpu", "h100", "--shared-prefix", "10", "--prefix-hit", "0.5"),
    ("serve", "config.json", "--gpu", "h100", "--draft", "ngram"),
    ("serve", "config.json", "--gpu", "h100", "--draft-tokens", "4"),
    ("serve", "config.json", "--gpu", "h100", "--acceptance", "0.4"),
    ("serve", "config.json", "--gpu", "h100", "--draft", "no-such-draft", "--acceptance", "0.4"),
    ("serve", "config.json", "--gpu", "h100", "--tp", "2", "--prefill-gpus", "3"),
    ("serve", "config.json", "--gpu", "h100", "--static", "--prefill-gpus", "1"),
    ("serve", "config.json", "--gpu", "h100", "--engine", "tensorrt-llm", "--offload-weights", "0.5"),
    ("serve", "config.json", "--gpu", "h100", "--offload-weights", "0.5", "--host", "EPYC 9R14"),
    ("serve", "config.json", "--gpu", "h100", "--host", "EPYC 9R14"),
    ("serve", "config.json", "--gpu", "h100", "--engine", "llama.cpp", "--gpu-layers", "999"),
    ("serve", "config.json", "--gpu", "h100", "--expert-skew", "2"),
    ("serve", "config.json", "--gpu", "h100", "--storage", "floppy"),
    ("serve", "config.json", "--gpu", "h100", "--storage", "nvme", "--storage-bandwidth", "1GB/s"),
    ("serve", "config.json", "--gpu", "h100", "--image-size", "10GB"),
    ("serve", "config.json", "--gpu", "h100", "--weights", "bf17"),
    ("memory", "config.json", "--task", "serve", "--weights", "bf17"),
    ("memory", "config.json", "--task", "serve", "--kv-dtype", "bf17"),
    *((*SIMULATE, *more.split()) for more in STRAYS), *((*QUEUED, *more.split()) for more in QUEUE_STRAYS),
    ("simulate", "config.json", "--gpu", "h100"), ("simulate", "t5-base", "--gpu", "h100", "--rate", "5"),
    ("simulate", "config.json", "--gpu", "h100", "--queue", "100"),
    ("simulate", "config.json", "--gpu", "h100", "--users", "4", "--autoscale", "kv"),
    ("simulate", "config.json", "--gpu", "h100", "--users", "4", "--response-cache", "5", "--distinct", "4"),
    ("plan", "config.json", "--task", "serve"), ("plan", "config.json", "--task", "pretrain"),
    ("plan", "config.json", "--task", "serve", "--rate", "5", "--ttft", "p95="),
    ("plan", "config.json", "--task", "serve", "--rate", "5", "--ttft", "p42=1s"),
    ("plan", "config.json", "--task", "serve", "--rate", "5", "--max-gpus", "1", "--min-gpus", "2"),
    ("prices", "import"), ("prices", "import", "missing.csv"), ("prices", "import", "config.json"),
    ("prices", "import", "rows.csv"), ("prices", "import", "aws.csv", "--name", "../x"), ("prices", "remove"),
    ("prices", "remove", "never-imported"), ("prices", "remove", "../../etc/passwd"), ("prices", "list", "aws"),
    ("prices", "import", "aws.csv", "--date", "2026-02-30"), ("prices", "import", "aws.csv", "--max-age", "5"),
    ("prices", "age", "--provider", "aws"), ("prices", "age", "aws"), ("prices", "refresh", "--name", "x"),
    ("plan", "--from", "missing.json"), ("plan", "--from", "config.json"), ("plan", "--from", "work.yaml"),
    ("plan", "--from", "empty"), ("plan", "work.yaml", "-o", "work.yaml/plan.json"),
)  # fmt: skip
"""Options that do not go together, or lack something."""

OTHER_BASES = {
    ("models", "--family"): ("models",),
    ("models", "--kind"): ("models",),
    ("roofline", "--assume-family"): ("roofline", "config.json", "--seq", "128", "--gpu", "h100"),
    **{
        ("simulate", f"--{name}"): SCALED
        for name in (
            "target",
            "min-replicas",
            "max-replicas",
            "cold-start",
            "cool-down",
            "tick",
        )
    },
    **{
        ("simulate", f"--{name}"): QUEUED
        for name in (
            "workers",
            "deadline",
            "spot-interruptions",
            "spot-price",
            "replace",
            "checkpoint-every",
            "trials",
        )
    },
    ("simulate", "--fallback"): (*QUEUED, "--deadline", "1h"),
    ("simulate", "--checkpoint-time"): (*QUEUED, "--checkpoint-every", "10min"),
    ("simulate", "--attain"): (*SCALED, "--ttft", "1s"),
    **{("simulate", f"--{name}"): CACHED for name in ("distinct", "skew", "repeated", "cache-ttl", "cache-price")},
    ("prices", "--date"): ("prices", "import", "aws.csv"),
    ("plan", "--optimizer"): ("plan", "train.yaml"),
    ("plan", "--precision"): ("plan", "train.yaml"),
    ("plan", "--stack"): ("plan", "train.yaml"),
    ("plan", "--qlora"): ("plan", "train.yaml", "--task", "finetune"),
    ("plan", "--lora"): ("plan", "train.yaml", "--task", "finetune"),
}
"""Options that mean something on another line only."""

NUMBERS = (
    "",
    " ",
    "abc",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e39",
    "0x10",
    "5 parsecs",
    "1;2",
    "--",
    "1ee3",
    "💥",
    "None",
)
WHOLES = (*NUMBERS, "1.5", "true", "9" * 99)
NAMES = (
    "",
    " ",
    "no-such-thing-at-all",
    "../../etc/passwd",
    "x" * 5000,
    "💥",
    "\x1b[31mred",
    "a\tb",
    "-1",
    "{}",
    "'; --",
)
BINARY = bytes(range(256)) * 4
DEEP = b"[" * 200_000


@dataclass(frozen=True)
class Case:
    """One malformed input."""

    label: str
    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Put the files there, those that are good first."""
        for name, content in {**GOOD_FILES, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (folder / "empty").mkdir()


def commands() -> list[str]:
    """Names of the commands there are."""
    return [name for section in COMMANDS.values() for name in section]


def cases() -> Iterator[Case]:
    """Every case, for the commands there are."""
    yield from _command_lines()
    yield from _options()
    yield from (Case(" ".join(argv)[:70], argv) for argv in CONTRADICTIONS if argv[0] in commands())
    yield from _model_files()
    yield from _facts_folders()
    if "plan" in commands():
        yield from _workloads()
    if "export" in commands():
        yield from _plan_files()
    if "assess" in commands():
        line = ("assess", "fleet.yaml", "-o", "out", "--scenarios", "20")
        yield from (Case(f"fleet: {label}", line, {"fleet.yaml": content}) for label, content in fleets())
        for where in ("config.json", "config.json/below"):
            yield Case(f"report into {where}", ("assess", "fleet.yaml", "-o", where))
        for name in ("missing.yaml", "empty", ""):
            yield Case(f"assess {name!r}", ("assess", name, "-o", "out"))
        for old in ("missing.json", "config.json", "empty"):
            yield Case(f"compare {old!r}", ("assess", "fleet.yaml", "--compare", old))
    if "backtest" in commands():
        yield from _measurements()


def _plan_files() -> Iterator[Case]:
    """Plan files that no search wrote."""
    layout = CANDIDATE["layout"]
    changed: dict[str, dict[str, Any]] = {
        "no layout": {"layout": {}},
        "a degree in words": {"layout": layout | {"tp": "two"}},
        "an engine that is not there": {"layout": layout | {"engine": "$(id)"}},
        "a format that is not there": {"layout": layout | {"weights": "fp7"}},
        "no machines": {"num_instances": 0},
        "a device that is not there": {"gpu": "H9000"},
    }
    for label, change in changed.items():
        plan = json.dumps(PLAN | {"plans": [CANDIDATE | change]}).encode()
        yield Case(f"plan file: {label}", BASES["export"], {"plan.json": plan})
    whole: dict[str, dict[str, Any]] = {"another task": {"task": "pretrain"}, "no candidate": {"plans": []}}
    for label, change in whole.items():
        yield Case(f"plan file: {label}", BASES["export"], {"plan.json": json.dumps(PLAN | change).encode()})


def _command_lines() -> Iterator[Case]:
    lines = [
        ("--nothing",), ("gpsu",), ("gpus", "h100", "a100"), ("gpus", "--vendor"), ("gpus", "--json", "yes"),
        ("gpus", "no-such-gpu"), ("gpus", "h100", "--vendor", "NVIDIA"), ("gpus", "--kind", "toaster"), ("gpus", ""),
        ("instances", "no-such-instance"), ("instances", "--gpu", "no-such-gpu"), ("instances", "--region", "moon"),
        ("models", "no-such-model-anywhere", "--offline"), ("models", "--batch", "2"),
        ("models", "config.json", "--batch", "2"),
        ("models", "config.json", "--family", "llama"), ("models", "0B"), ("models", "-7B"), ("models", "empty"),
        ("models", "infB"), ("models", "1e30B"), ("models", "work.yaml"), ("models", "/"), ("models", "config.json/x"),
        ("runs", "lst"), ("runs", "list", "x"), ("runs", "show"), ("runs", "show", "nothing"),
        ("runs", "delete", "x", "--yes"), ("runs", "export", "x"), ("runs", "export", "x", "-o", "out"),
        ("runs", "export", "-o", "out"),
        ("runs", "list", "--store", "missing.db"), ("runs", "list", "--store", "empty"),
        ("runs", "list", "--store", ""), ("runs", "list", "--store", "config.json"),
        ("runs", "show", "x", "--store", "mysql://a:b@c/d"),
        ("runs", "list", "--store", "postgresql://["), ("runs", "list", "--since", "yesterday"),
        ("runs", "list", "--since", "-1d"), ("runs", "list", "--since", "2026-02-30"), ("runs", "list", "--task", "x"),
        ("runs", "list", "--store", "postgresql://u:secret@127.0.0.1:1/d"), ("runs", "list", "--since", "1e300d"),
        ("export",), ("export", "vllm"), ("export", "vllm", "plan.json"), ("export", "vlm", "plan.json", "-o", "out"),
        ("export", "vllm", "missing.json", "-o", "out"), ("export", "vllm", "work.yaml", "-o", "out"),
        ("export", "vllm", "empty", "-o", "out"), ("export", "vllm", "plan.json", "-o", "plan.json"),
        ("export", "vllm", "plan.json", "-o", "out", "--rank", "2"), ("plan", "work.yaml", "--to", "nowhere"),
        ("assess", "fleet.yaml", "--to", "vllm"), ("assess", "fleet.yaml", "-o", "out", "--to", "nowhere"),
        ("models", "."+"/missing/config.json"), ("models", "a/b/c/d"), ("models", "https://example.org/config.json"),
    ]  # fmt: skip
    for argv in lines:
        yield Case(" ".join(argv)[:60], argv)


def _options() -> Iterator[Case]:
    """Values of the wrong kind for every option of every command: all of them once a kind, else one after another."""
    seen = set[str]()
    for number, (name, param) in enumerate(_parameters()):
        opt, values, kind = max(param.opts, key=len), _wrong(param), param.type.name
        if kind in seen:
            values = values[number % len(values) :][:1]
        seen.add(kind)
        for value in values:
            yield Case(f"{name} {opt} {value!r:.30}", (*OTHER_BASES.get((name, opt), BASES[name]), f"{opt}={value}"))


def _parameters() -> Iterator[tuple[str, click.Option]]:
    """(command, option) of each option that takes a value which can be wrong."""
    for name in commands():
        command = app.get_command(click.Context(app), name)
        assert command is not None
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag and param.name != "facts" and _wrong(param):
                yield name, param


def _wrong(param: click.Option) -> tuple[str, ...]:
    """Values that a parameter of this type cannot have."""
    if not isinstance(param.type, Value):
        return ()
    kind = param.type.kind
    if kind.metavar == "text":
        return ("", " ", "x" * 5000)
    if kind.choices:
        return ("", "toaster", "-1", "💥")
    if kind.words == "quantity":
        return WHOLES if kind.metavar == "n" else NUMBERS
    if param.name == "name":  # of something new
        return tuple(name for name in NAMES if name != "no-such-thing-at-all")
    return () if kind is FILE else NAMES


def _model_files() -> Iterator[Case]:
    """Configurations that are no configuration, or say what cannot be."""
    contents: dict[str, bytes] = {
        "empty": b"",
        "binary": BINARY,
        "truncated": CONFIG[: len(CONFIG) // 2],
        "list": b"[1, 2]",
        "number": b"7",
        "null": b"null",
        "text": b'"llama"',
        "no keys": b"{}",
        "not json": b"model_type: llama",
        "utf-16": CONFIG.decode().encode("utf-16"),
        "deep": DEEP,
        "deep object": b'{"model_type": ' * 100_000,
        "model_type number": b'{"model_type": 5}',
        "model_type list": b'{"model_type": ["llama"]}',
        "model_type unknown": b'{"model_type": "llamaa-nova"}',
        "model_type empty": b'{"model_type": ""}',
        "long number": b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
    }
    for label, content in contents.items():
        yield Case(f"config.json {label}", ("models", "config.json"), {"config.json": content})
        yield Case(f"folder with config.json {label}", ("models", "it"), {"it/config.json": content})
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    wrong: tuple[Any, ...] = (-1, 0, 1.5, "abc", [], {}, 1e30, float("nan"), float("inf"), 10**18, "4096; drop")
    for key in sizes:
        for value in wrong:
            content = json.dumps(LLAMA | {key: value}).encode()
            yield Case(f"config.json {key}={value!r}", ("models", "config.json"), {"config.json": content})
    for key, value in (
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 0),
        ("num_attention_heads", 7),
        ("head_dim", -64),
    ):
        content = json.dumps(LLAMA | {key: value}).encode()
        yield Case(f"config.json {key}={value!r}", ("models", "config.json"), {"config.json": content})


def _facts_folders() -> Iterator[Case]:
    """Folders of facts that are missing, or whose files are broken."""
    for folder in ("missing", "empty", "config.json", "", "\x1b[31m"):
        yield Case(f"--facts {folder!r}", ("gpus", "--facts", folder))
    head = b"name,vendor,architecture,kind,hbm_bytes,hbm_bytes_per_s,source,date\n"
    rows = {
        "binary": BINARY,
        "empty": b"",
        "no such column": b"name,speed,source,date\nX1,5,me,2026-01-01\n",
        "no key": b"vendor,kind\nme,gpu\n",
        "quote": head + b'X1,"me,Next,gpu,80GB,3TB/s,me,2026-01-01\n',
        "short row": head + b"X1,me,Next\n",
        "long row": head + b"X1,me,Next,gpu,80GB,3TB/s,me,2026-01-01,7,8,9\n",
        "twice": head + b"X1,me,Next,gpu,80GB,3TB/s,me,2026-01-01\n" * 2,
        "memory negative": head + b"X1,me,Next,gpu,-80GB,3TB/s,me,2026-01-01\n",
        "memory zero": head + b"X1,me,Next,gpu,0,3TB/s,me,2026-01-01\n",
        "memory nan": head + b"X1,me,Next,gpu,nan,3TB/s,me,2026-01-01\n",
        "memory infinite": head + b"X1,me,Next,gpu,inf,3TB/s,me,2026-01-01\n",
        "memory huge": head + b"X1,me,Next,gpu,1e99,3TB/s,me,2026-01-01\n",
        "memory text": head + b"X1,me,Next,gpu,lots,3TB/s,me,2026-01-01\n",
        "kind": head + b"X1,me,Next,toaster,80GB,3TB/s,me,2026-01-01\n",
        "date": head + b"X1,me,Next,gpu,80GB,3TB/s,me,yesterday\n",
        "no bandwidth": head + b"X1,me,Next,gpu,80GB,,me,2026-01-01\n",
        "no name": head + b",me,Next,gpu,80GB,3TB/s,me,2026-01-01\n",
    }
    for label, content in rows.items():
        yield Case(f"accelerators.csv {label}", ("gpus", "--facts", "own"), {"own/accelerators.csv": content})
    head = b"provider,instance,region,accelerator,count,on_demand_usd_per_hour,price_date,source\n"
    rows = {
        "binary": BINARY,
        "unknown accelerator": head + b"me,i1,here,H9000,8,5,2026-01-01,me\n",
        "price negative": head + b"me,i1,here,H100-SXM-80,8,-5,2026-01-01,me\n",
        "price nan": head + b"me,i1,here,H100-SXM-80,8,nan,2026-01-01,me\n",
        "price text": head + b"me,i1,here,H100-SXM-80,8,cheap,2026-01-01,me\n",
        "count zero": head + b"me,i1,here,H100-SXM-80,0,5,2026-01-01,me\n",
        "count fraction": head + b"me,i1,here,H100-SXM-80,1.5,5,2026-01-01,me\n",
        "count huge": head + b"me,i1,here,H100-SXM-80,1e30,5,2026-01-01,me\n",
        "date": head + b"me,i1,here,H100-SXM-80,8,5,2026-13-45,me\n",
        "no instance": head + b"me,,here,H100-SXM-80,8,5,2026-01-01,me\n",
    }
    for label, content in rows.items():
        yield Case(f"instances.csv {label}", ("instances", "--facts", "own"), {"own/instances.csv": content})
    for label, content in {
        "binary": BINARY,
        "not json": b"llama\n",
        "cut": b'{"name": "x",\n',
        "list": b"[]\n",
    }.items():
        yield Case(f"models.jsonl {label}", ("models", "x", "--facts", "own"), {"own/models.jsonl": content})


def _workloads() -> Iterator[Case]:
    """Workload files that are no YAML, or no workload."""
    contents: dict[str, bytes] = {
        "empty": b"",
        "binary": BINARY,
        "tab": b"model:\t- x\n\ttask: serve",
        "open bracket": b"model: [x\ntask: serve",
        "list": b"- model",
        "text": b"serve",
        "number": b"5",
        "deep": b"[" * 5000,
        "two documents": WORKLOAD + b"---\n" + WORKLOAD,
        "python tag": b"model: !!python/object/apply:os.system ['true']\ntask: serve",
        "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nmodel: *c\ntask: serve",
        "twice": WORKLOAD + b"task: train\n",
        "recursive": b"&a [*a]",
        "unknown key": WORKLOAD + b"tragets: {tpot: 1s}\n",
        "unknown nested key": b"model: config.json\ntask: serve\ntargets: {tpto: 1s}\n",
        "no model": b"task: serve\n",
        "no task": b"model: config.json\n",
        "task": b"model: config.json\ntask: dance\n",
        "model number": b"model: 7\ntask: serve\n",
        "model unknown": b"model: no-such-model-anywhere\ntask: serve\ntraffic: {requests_per_s: 2}\n",
        "gpu unknown": WORKLOAD.replace(b"h100", b"h9000"),
        "provider unknown": WORKLOAD.replace(b"gpus: [h100]", b"providers: [moonbase]"),
        "region unknown": WORKLOAD.replace(b"gpus: [h100]", b"regions: [moon-1]"),
        "purchase": WORKLOAD.replace(b"gpus: [h100]", b"purchase: [gift]"),
        "null traffic": b"model: config.json\ntask: serve\ntraffic: null\n",
        "latin-1": "model: caf\xe9\ntask: serve\n".encode("latin-1"),
    }
    for quantity in ("-1", "0", ".nan", ".inf", "abc", "[]", "{}", "1e400", "5 parsecs", "true", "''", "2026-01-01"):
        contents[f"tpot {quantity}"] = WORKLOAD.replace(b"50ms", quantity.encode())
        contents[f"requests_per_s {quantity}"] = WORKLOAD.replace(
            b"requests_per_s: 2", b"requests_per_s: " + quantity.encode()
        )
        contents[f"max_gpus {quantity}"] = WORKLOAD.replace(b"gpus: [h100]", b"max_gpus: " + quantity.encode())
    for label, content in contents.items():
        yield Case(f"work.yaml {label}", ("plan", "work.yaml"), {"work.yaml": content})
    for name in ("missing.yaml", "empty", ""):
        yield Case(f"plan {name!r}", ("plan", name))


def _measurements() -> Iterator[Case]:
    """Measurement files that are no table; a row that cannot be predicted is skipped, not an error."""
    for kind in ("kernels", "serving", "training", "memory", "gpu-hours", "weights", "io"):
        for label, content in {
            "binary": BINARY,
            "empty": b"",
            "json": b'{"a": 1}',
            "no columns": b"a,b\n1,2\n",
        }.items():
            yield Case(f"backtest {kind} {label}", ("backtest", kind, "rows.csv"), {"rows.csv": content})
        yield Case(f"backtest {kind} missing", ("backtest", kind, "missing.csv"))
        yield Case(f"backtest {kind} folder", ("backtest", kind, "empty"))
    yield Case("backtest kind", ("backtest", "vibes", "rows.csv"))
