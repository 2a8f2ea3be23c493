"""Record what flopwise answers, and compare two trees: a change of structure must leave every answer as it was.

    python benchmarks/answers.py record build/answers.json
    python benchmarks/answers.py compare build/answers.json      exit 1 where an answer differs

Questions: every example and every flopwise line of the documents, but those that measure this machine or open a page,
and a grid over all commands, families of models and vendors. An answer is the exit code, the JSON document and the
message; times that the answer took are left out. Answers hold on the machine and the day that they were recorded on.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parent.parent
ELAPSED = re.compile(r'("elapsed_s": )[0-9.e-]+')
MEASURED = {"probe", "web"}
"""Commands whose answer is this machine's, or never ends."""
AS_TEXT = {"completion", "export"}
"""Commands whose answer is text for a shell, or files."""
DEVICES = (
    "h100", "a100-80gb", "b200", "l4", "v100", "t4", "rtx-4090", "mi300x", "mi250x", "tpu-v5e", "tpu-v6e", "gaudi3",
    "gaudi2", "trainium1", "trainium2", "max-1550",
)  # fmt: skip
PROCESSORS = ("xeon-platinum-8480+", "epyc-9654", "graviton4")
DENSE = "Llama-3.1-8B"


def documented() -> Iterator[list[str]]:
    """The flopwise lines in the pages."""
    for page in sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "extending.md"}):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```console[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^\$ (flopwise [^|\n]*)", block, re.MULTILINE):
                question = shlex.split(line, comments=True)[1:]
                if question[0] not in MEASURED:
                    yield question


def examples() -> Iterator[list[str]]:
    """The files in examples/."""
    for workload in sorted((ROOT / "examples").glob("[0-9]*.yaml")):
        yield ["plan", str(workload.relative_to(ROOT))]
    for fleet in ("hybrid", "textnlp"):
        yield ["assess", f"examples/{fleet}.yaml", "--scenarios", "200"]
    yield ["plan", "examples/sweep.yaml"]
    for kind in ("serving", "training"):
        yield ["backtest", kind, f"examples/measured-{kind}.csv"]


def families() -> list[str]:
    """One model of each model type: the smallest that is in the catalog."""
    import flopwise

    chosen: dict[str, tuple[float, str]] = {}
    for row in flopwise.models():
        size = (row["parameters"] or float("inf"), row["name"])
        chosen[row["model_type"]] = min(chosen.get(row["model_type"], size), size)
    return [name for _, name in chosen.values()]


def grid() -> Iterator[list[str]]:
    """Questions over commands, families and vendors."""
    for model in families():
        yield ["models", model, "--batch", "1", "--seq", "128"]
        yield ["memory", model, "--task", "train", "--gpu", "h100"]
        yield ["train", model, "--gpu", "h100", "--gpus", "16", "--tokens", "1B"]
        yield ["serve", model, "--gpu", "h100", "--concurrency", "8"]
    for device in (*DEVICES, *PROCESSORS):
        yield ["gpus", device]
        yield ["memory", DENSE, "--task", "serve", "--gpu", device, "--context", "8k"]
        yield ["serve", "Llama-3.2-1B", "--gpu", device, "--input", "500", "--output", "100"]
        yield ["train", "Llama-3.2-1B", "--gpu", device, "--gpus", "8", "--tokens", "1B"]
        yield ["instances", "--gpu", device]
        yield ["fit", DENSE, "--gpu", device, "--context", "8k"]
    mixture = ["train", "Mixtral-8x7B", "--gpu", "h100", "--gpus", "64"]
    dense = ["train", DENSE, "--gpu", "h100", "--gpus", "32"]
    for options in (
        "--tp 4 --pp 2 --interleave 2 --stack megatron --precision fp8", "--fsdp --recompute full", "--zero 1",
        "--zero 2 --optimizer adamw-8bit", "--optimizer muon --zero 1", "--fsdp --shard 8", "--qlora", "--lora 64",
        "--tp 8 --pp 4 --schedule zero-bubble --stack megatron-deepspeed", "--cp 4 --seq 32768", "--attention eager",
        "--offload optimizer --zero 3", "--compare", "--packing padded --mean-length 900", "--freeze embedding",
        "--tokens 100B --mtbf 1000d --restart 10min --jitter 2%", "--tokens 1T --provider aws --purchase spot",
        "--recompute-every 2 --fsdp", "--pp 4 --stage-layers 7,8,8,9", "--global-batch-tokens 4M --precision mxfp8",
    ):  # fmt: skip
        yield [*dense, *options.split()]
    for line in (
        "train resnet50 --gpu v100 --gpus 64 --global-batch 8192 --samples 1.28M --epochs 90",
        "train resnet50 --gpu h100 --gpus 8 --micro-batch 64 --samples 1M", "train unet3d --gpu a100-80gb",
        "train tiramisu --gpu v100 --gpus 16 --provider aws --samples 1M --checkpoint-every 10min",
        "train resnet50 --gpu b200 --gpus 16 --optimizer sgd --precision fp32 --jitter 4%", "train bert --gpu h100",
        "train resnet50 --gpu v100 --tp 2", "train resnet50 --gpu v100 --optimizer muon", "memory resnet50 --gpu t4",
        "memory resnet50 --gpu 4xa100 --micro-batch 512 --grad-accum 2 --dp 4", "memory resnet50 --gpu 4xa100 --dp 3",
        "memory unet3d --task train --gpu v100 --micro-batch 3", "memory deepcam --gpu h100", "memory resnet50 --tp 2",
    ):  # fmt: skip
        yield line.split()
    for options in (
        "--ep 8", "--ep 8 --expert-skew 1.5", "--ep 4 --capacity-factor 1.25 --zero 1", "--tp 2 --ep 8",
        "--tp 2 --ep 8 --expert-tp 2 --stack megatron-te", "--ep 8 --recompute-modules moe --stack megatron-te",
    ):  # fmt: skip
        yield [*mixture, *options.split()]
    chat = ["serve", "Llama-3.1-70B", "--gpu", "h100", "--tp", "4"]
    for options in (
        "--weights fp8", "--weights awq --kv-dtype fp8", "--engine sglang", "--engine tensorrt-llm --weights fp8",
        "--engine llama.cpp --weights Q4_K_M", "--rate 2", "--draft eagle --acceptance 0.7", "--prefix-hit 60%",
        "--shared-prefix 200", "--sweep concurrency", "--memory-fraction 0.8", "--concurrency 256",
        "--adapters 8 --adapter-rank 16", "--rate 0.5 --turns 4 --think 30s --input 800 --output 200",
        "--rate 0.5 --turns 4 --think 30s --kv-stores host=50GB --tool-share 0.2 --tool-pause 3s",
        "--rate 5 --batch-wait 4 --engine tensorrt-llm",
    ):  # fmt: skip
        yield [*chat, *options.split()]
    for model, options in (
        ("DeepSeek-V3", "--gpu h200 --tp 8 --weights fp8"), ("DeepSeek-V3", "--gpu h200 --tp 8 --dp 4 --ep 32"),
        ("Mixtral-8x7B", "--gpu mi300x --tp 2"), ("gpt-oss-120b", "--gpu h100 --concurrency 16"),
        ("Qwen2.5-VL-7B", "--gpu l40s --images 2 --input 3000"), (DENSE, "--gpu h100 --images 1"),
    ):  # fmt: skip
        yield ["serve", model, *options.split()]
    simulate = ["simulate", DENSE, "--gpu", "h100", "--requests", "300"]
    for options in (
        "--rate 5", "--users 20", "--rate 30 --replicas 3", "--trace examples/trace.csv",
        "--rate 5 --policy shortest", "--rate 20 --autoscale concurrency --max-replicas 4", "--rate 5 --arrivals gamma",
        "--rate 5 --response-cache 50 --distinct 100", "--rate 4 --prefill-replicas 1",
        "--rate 5 --draft ngram --acceptance 0.5",
    ):  # fmt: skip
        yield [*simulate, *options.split()]
    yield ["simulate", DENSE, "--gpu", "h100", "--queue", "1000", "--spot-interruptions", "0.1/day"]
    for line in (
        "plan Llama-3.1-8B --task finetune --lora 16 --tokens 50M --budget 100",
        "plan Llama-3.1-8B --task serve --rate 5 --input 1000 --output 200 --gpu h100",
        "plan Llama-3.1-8B --task pretrain --tokens 100B --deadline 14d --gpu h100 --gpu mi300x",
        "plan Mixtral-8x7B --task pretrain --tokens 10B --gpu h100 --max-gpus 64",
        "plan bert-base-uncased --task encode --rate 50 --input 300",
        "plan Llama-3.1-8B --task batch --requests 100k --input 1000 --output 200",
        "plan Llama-3.1-8B --task serve --rate 0.5 --turns 4 --think 40s --input 1200 --output 150 --gpu l40s",
        "plan Llama-3.1-8B --task serve --rate 5 --adapters 8 --adapter-rank 16 --gpu l40s --no-simulate",
        "plan Llama-3.1-70B --task serve --concurrency 50 --input 4000 --gpu h100 --no-simulate --weights any",
        "check examples/existing.yaml --existing examples/existing.csv", "check examples/existing.yaml",
        "fit Llama-3.3-70B --gpu 2xa100-80gb --context 32k", "fit DeepSeek-V3 --gpu 8xh200",
        "fit Llama-3.1-70B --gpu rtx-4090", "fit Qwen3-30B-A3B --gpu rtx4090 --formats awq,nvfp4 --kv-dtype fp8",
        "observe --load examples/guidellm.json", "watch --rules", "export --list",
        "calibrate examples/measured-training.csv --name ours --dry-run",
        "calibrate examples/measured-serving.csv --name ours --dry-run",
        "compare Llama-3.1-8B --tokens-per-month 1B --api-price 0.2/0.6 --gpu h100 --no-simulate",
        "io resnet50 --gpu h100 --gpus 64", "io Llama-3.1-8B --gpu h100 --gpus 64",
        "io unet3d --gpu a100-80gb --gpus 8",
        "roofline --flops 1e15 --bytes 1e12 --gpu h100", "roofline gpt2 --gpu h100",
        "explain train Llama-3.1-8B --gpu h100 --gpus 8", "explain serve Llama-3.1-8B --gpu h100",
        "explain memory Llama-3.1-8B --task serve --gpu l4", "explain gpt2-xl --gpu a100-80gb --batch 8 --seq 1024",
        "memory Llama-3.1-8B --task serve --gpu v100 --context 8k --concurrency 32",
        "memory Llama-3.1-70B --task train --gpu h100 --fsdp --dp 8",
        "memory Llama-3.1-8B --task train --qlora --gpu l4",
        "prices age", "prices own", "gpus --vendor AMD", "instances --provider aws --gpu h100",
        "instances --purchase spot --gpu a100-80gb",
    ):  # fmt: skip
        yield line.split()


def unique(lines: list[list[str]]) -> list[list[str]]:
    """Each line once, in the order of its first place."""
    return [list(line) for line in dict.fromkeys(tuple(line) for line in lines)]


def answer(question: list[str]) -> tuple[str, dict[str, Any]]:
    """The question as a line, and its exit code, document and message."""
    from flopwise import cli

    said = {"--json", "--help", "--csv", "--markdown"} & set(question)
    as_json = [] if said or question[0] in AS_TEXT else ["--json"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([*question, *as_json])
    shown = ELAPSED.sub(r"\1null", out.getvalue())
    return shlex.join(question), {"code": code, "out": shown, "err": err.getvalue()}


def answers_in_turn(lines: list[list[str]]) -> list[tuple[str, dict[str, Any]]]:
    """The answers to questions of which one may read what another has written."""
    return [answer(line) for line in lines]


def recorded() -> dict[str, Any]:
    """Every question's answer, by line."""
    os.chdir(ROOT)
    os.environ.pop("FLOPWISE_FACTS", None)
    place = ROOT / "build" / "answers"  # messages name it
    shutil.rmtree(place, ignore_errors=True)
    os.environ |= {
        "FLOPWISE_PRICES": str(place / "prices"), "FLOPWISE_RUNS": str(place / "runs.db"), "FLOPWISE_CONFIG": "",
        "FLOPWISE_CALIBRATIONS": str(place / "profiles"),
    }  # fmt: skip
    record_runs()
    pages = list(documented())
    rest = [q for q in unique([*examples(), *grid()]) if q not in pages]
    parts = [unique(pages), *(rest[i::16] for i in range(16))]
    try:
        with ProcessPoolExecutor(2) as pool:
            return dict(itertools.chain.from_iterable(pool.map(answers_in_turn, parts)))
    finally:
        shutil.rmtree(place)


def record_runs() -> None:
    """The runs that the documents name."""
    from flopwise.records.model import Run, Sample
    from flopwise.records.store import open_store

    store = open_store()
    tasks: dict[str, Literal["pretrain", "serve"]] = {"pretrain-tiny": "pretrain", "serve-tiny": "serve"}
    for number, (name, task) in enumerate(tasks.items()):
        store.add_run(Run(run_id=f"{number:032x}", name=name, task=task, started_at_s=1.7e9))
        store.append(f"{number:032x}", [Sample("step_s", 1.7e9 + step, 0.05, step) for step in range(5)])


def places(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Where two documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from places(before.get(key), after.get(key), f"{at}.{key}")
        if list(before) != list(after) and set(before) == set(after):
            yield f"{at or '.'}: keys in another order"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from places(left, right, f"{at}[{i}]")
    elif before != after:
        yield f"{at or '.'}: {str(before)[:150]} -> {str(after)[:150]}"


def differences(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs; how many questions do."""
    count = 0
    for line in sorted({*before, *after}):
        old, new = before.get(line), after.get(line)
        if old == new:
            continue
        count += 1
        print(f"$ flopwise {line}")
        if old is None or new is None:
            print("    asked in one tree only")
            continue
        try:
            left, right = ({**a, "out": json.loads(a["out"])} for a in (old, new))
        except ValueError:
            left, right = old, new
        for i, text in enumerate(places(left, right)):
            if i == 6:
                print("    ...")
                break
            print(f"    {text}")
    print(f"{len(after)} questions, {count} with another answer")
    return count


def main() -> int:
    """Record, or compare with a record."""
    verb, file = sys.argv[1:] if len(sys.argv) == 3 else ("", "")
    if verb not in ("record", "compare"):
        print(__doc__)
        return 2
    path = Path(file).resolve()
    answers = recorded()
    if verb == "compare":
        return int(differences(json.loads(path.read_text(encoding="utf-8")), answers) > 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answers, indent=1, sort_keys=True), encoding="utf-8")
    print(f"{len(answers)} answers in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
