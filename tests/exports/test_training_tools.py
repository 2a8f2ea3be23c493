"""Exported training jobs before the libraries that read them, and run."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_training import arguments_of
from tools import RefusedError, need
from training_samples import DATA_PARALLEL, FINETUNE, FULL, PRETRAIN, deployment_of, spread

from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Exported
from flopwise.exports.hugging_face import adapter_config
from flopwise.exports.targets import exported_plan
from flopwise.exports.training_command import training_command
from flopwise.facts.catalog import load_facts
from flopwise.training.adapters import trainable_parameters

pytestmark = pytest.mark.exports

MEGATRON_LM = {
    "--micro-batch-size", "--global-batch-size", "--train-iters", "--optimizer", "--lr", "--save", "--load",
    "--save-interval", "--ckpt-format", "--async-save", "--pretrained-checkpoint", "--exit-signal-handler",
    "--log-throughput", "--data-path", "--split", "--eval-iters", "--tokenizer-type", "--tokenizer-model",
    "--vocab-size", "--seq-length", "--max-position-embeddings", "--position-embedding-type", "--rotary-percent",
    "--swiglu", "--squared-relu", "--disable-bias-linear", "--untie-embeddings-and-output-weights",
    "--group-query-attention", "--num-virtual-stages-per-pipeline-rank", "--use-distributed-optimizer",
    "--overlap-grad-reduce", "--overlap-param-gather", "--num-distributed-optimizer-instances",
    "--accumulate-allreduce-grads-in-fp32", "--optimizer-cpu-offload", "--multi-latent-attention", "--num-experts",
    "--attention-backend", "--bf16", "--fp16", "--grad-reduce-in-bf16",
}  # fmt: skip
"""Options of Megatron-LM's own parser, not derived from Megatron-Core's classes: megatron/training/arguments.py at
commit 000c4ac24f61159c138b0975def722c65245983c, of Megatron-Core 0.16."""


def taken(reader: str, document: dict[str, Any]) -> dict[str, Any]:
    """What a library of the group `training` understands of a document."""
    for library in ("accelerate", "datasets", "deepspeed", "megatron", "peft", "torchtitan", "triton"):
        need(importlib.util.find_spec(library) is not None, library, "make exports")
    process = reading_process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"reader": reader, "document": document}) + "\n")
    process.stdin.flush()
    stop = threading.Timer(300, process.kill)
    stop.start()
    line = process.stdout.readline()
    stop.cancel()
    assert line, f"the process of {reader} ended"
    answer = json.loads(line)
    if not answer["taken"]:
        raise RefusedError(f"{reader}: {answer['understood']}")
    understood: dict[str, Any] = answer["understood"]
    return understood


MODULES = (
    "transformers.training_args", "transformers.models.auto.modeling_auto", "peft",
    "accelerate.commands.config.config_args", "deepspeed.runtime.config",
    "megatron.core.transformer.transformer_config", "megatron.core.transformer.pipeline_parallel_layer_layout",
    "torchtitan.config", "torchtitan.models.llama3", "torchtitan.models.qwen3",
)  # fmt: skip
"""What the readers need; they share most of it, and so one process that has loaded it."""


@cache
def reading_process() -> subprocess.Popen[str]:
    """The process that reads; it ends with the tests of this file."""
    program = str(Path(__file__).with_name("training_readers.py"))
    return subprocess.Popen(
        [sys.executable, program, *MODULES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    if reading_process.cache_info().currsize:
        with reading_process():  # its input ends, and so does it
            pass
        reading_process.cache_clear()


def written(made: Exported, folder: Path) -> Path:
    """The folder with the files of an export."""
    for path, text in made.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {"recompute": "full"},
    "ddp": {"zero": 0, "stack": "hf-trainer"},
    "some blocks": {"recompute": "full", "recompute_every": 4, "zero": 0, "stack": "hf-trainer"},
    "hsdp": {"shard": 4},
    "deepspeed": {"stack": "deepspeed-zero3", "offload": ["optimizer"], "zero": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transformers_and_accelerate_take_their_files(layout: str, tmp_path: Path) -> None:
    made = exported_plan("accelerate", spread(LAYOUTS[layout]))
    folder = written(made, tmp_path)
    read = json.loads(made.files["training_arguments.json"]) | {"output_dir": str(tmp_path / "out"), "bf16": False}
    arguments = taken("arguments", read)
    assert (arguments["max_steps"], arguments["per_device_train_batch_size"]) == ("382", "2")
    assert arguments["gradient_accumulation_steps"] == "4"
    config = taken("accelerate", {"path": str(folder / "accelerate.yaml")})
    kinds = {"fsdp": "FSDP", "hsdp": "FSDP", "deepspeed": "DEEPSPEED"}
    assert (config["processes"], config["kind"]) == (8, kinds.get(layout, "MULTI_GPU"))


def test_transformers_and_accelerate_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="micro_batch"):
        taken("arguments", {"micro_batch": 2})
    (tmp_path / "x.yaml").write_text("distributed_type: FSDP\nshards: 8\n", encoding="utf-8")
    with pytest.raises(RefusedError, match="unknown keys"):
        taken("accelerate", {"path": str(tmp_path / "x.yaml")})


@pytest.mark.parametrize(
    "layout",
    [
        {"zero": 3, "offload": ["optimizer", "parameters"]},
        {"zero": 2, "recompute": "full"},
        {"zero": 1, "precision": "fp16"},
        {"zero": 0},
    ],
)
def test_deepspeed_takes_its_configuration(layout: dict[str, Any]) -> None:
    document = FULL | ({"precision": "fp16"} if layout.get("precision") == "fp16" else {})
    made = exported_plan("deepspeed", spread({"stack": "deepspeed-zero3"} | layout, document=document))
    config = json.loads(made.files["deepspeed.json"])
    understood = taken("deepspeed", {"config": config, "ranks": 8})
    assert understood == {"batches": [64, 2, 4], "stage": layout["zero"]}
    with pytest.raises(RefusedError, match="AssertionError"):
        taken("deepspeed", {"config": config | {"train_batch_size": 63}, "ranks": 8})


@pytest.mark.parametrize(
    "name",
    ["Llama-3.1-8B", "gpt2", "gpt-j-6b", "Qwen2.5-7B", "Mistral-7B", "Qwen3-8B", "bert-base-uncased", "opt-1.3b",
     "pythia-1.4b", "gemma-2-9b", "phi-2"],
)  # fmt: skip
def test_peft_trains_as_many_parameters_as_planned(name: str) -> None:
    deployment = deployment_of(FINETUNE | {"model": "Llama-3.1-8B", "method": {"kind": "lora", "rank": 8}})
    model = load_facts().model(name)
    adapters = adapter_config(dataclasses.replace(deployment, model=model))
    config = next(row["config"] for row in records() if row["name"] == model.name)
    understood = taken("peft", {"model": config, "adapters": adapters, "masked": model.kind == "encoder"})
    assert deployment.training is not None
    lora = deployment.training.recipe.lora
    assert lora is not None
    assert understood["trained"] == trainable_parameters(model, lora)


def records() -> Iterator[dict[str, Any]]:
    path = Path(__file__).parents[2] / "src/flopwise/data/models.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def test_bitsandbytes_settings_are_read_by_transformers() -> None:
    deployment = deployment_of(FINETUNE | {"method": {"kind": "qlora", "rank": 16}})
    read = json.loads(exported_plan("peft", deployment).files["quantization.json"])
    assert taken("quantization", read) == {"bits": 4, "kind": "nf4", "dtype": "torch.bfloat16"}


# --- Megatron

MEGATRON_LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Llama-3.1-8B", {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "interleave": 2, "recompute": "full"}),
    "context": ("Llama-3.1-8B", {"dp": 2, "tp": 2, "cp": 2, "zero": 1, "recompute": "selective"}),
    "experts": ("Mixtral-8x7B", {"dp": 8, "ep": 8, "zero": 1}),
    "latent": ("DeepSeek-V2-Lite", {"dp": 8, "ep": 8, "zero": 1, "recompute": "full", "recompute_every": 2}),
    "learned positions": ("gpt2-medium", {"dp": 8, "zero": 1}),
    "fp8": ("Llama-3.1-8B", {"dp": 8, "zero": 1, "precision": "fp8"}),
}


@pytest.mark.parametrize("stack", ["megatron-te", "nemo"])
@pytest.mark.parametrize("case", MEGATRON_LAYOUTS)
def test_megatron_core_takes_the_arguments(case: str, stack: str) -> None:
    name, layout = MEGATRON_LAYOUTS[case]
    document = PRETRAIN | {"model": name} | ({"precision": "fp8"} if case == "fp8" else {})
    document["data"] = PRETRAIN["data"] | {"seq_len": 1024}
    deployment = spread({"stack": stack} | layout, document=document, learning_rate=3e-4)
    understood = taken("megatron", {"options": options_of(deployment)})
    assert set(understood["unknown"]) - MEGATRON_LM == set()
    shape = deployment.model.stacks[0]
    assert (understood["num_layers"], understood["hidden_size"]) == (shape.num_layers, shape.width)
    assert understood["tensor_model_parallel_size"] == layout.get("tp", 1)
    assert understood["pipeline_model_parallel_size"] == layout.get("pp", 1)


def test_megatron_core_refuses_what_does_not_divide() -> None:
    options = {"--num-layers": ["2"], "--hidden-size": ["64"], "--num-attention-heads": ["6"],
               "--tensor-model-parallel-size": ["4"]}  # fmt: skip
    with pytest.raises(RefusedError, match="multiple of tensor_model_parallel_size"):
        taken("megatron", {"options": options})


def test_layers_that_do_not_divide_lie_as_named() -> None:
    layout = {"stack": "megatron-te", "dp": 1, "pp": 5, "micro_batch": 1}
    deployment = deployment_of(
        PRETRAIN | {"model": "Llama-3.1-8B"}, {"num_gpus": 5, "layout": DATA_PARALLEL | {"zero": 0} | layout}
    )
    text = arguments_of(deployment)["--pipeline-model-parallel-layout"][0]
    assert taken("stages", {"layout": text}) == {"layers": [6, 7, 7, 6, 6]}


def options_of(deployment: Deployment) -> dict[str, list[str]]:
    """Options behind the program, not those of its launcher."""
    return {
        name: words for name, words in arguments_of(deployment).items() if not name.startswith("--n") or "num" in name
    }


# --- torchtitan


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("Llama-3.1-8B", {"zero": 3, "shard": 4, "recompute": "selective"}),
        ("Llama-3.1-8B", {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "interleave": 2, "micro_batch": 1}),
        ("Qwen3-30B-A3B", {"dp": 8, "ep": 8, "zero": 3, "recompute": "full"}),
    ],
)
def test_torchtitan_takes_its_options(name: str, layout: dict[str, Any]) -> None:
    deployment = spread(layout, document=PRETRAIN | {"model": name}, learning_rate=1e-4)
    args = training_command(deployment).args
    options = list(args[args.index("torchtitan.train") + 1 :])
    understood = taken("torchtitan", {"options": options})
    assert understood.pop("recompute").lower().startswith(layout.get("recompute", "none"))
    assert understood == {
        "steps": math.ceil(100e9 / (1024 * 4096)), "batch": 1024, "compiled": True, "tp": layout.get("tp", 1),
        "shard": layout.get("shard", layout.get("dp", 8)), "layers": deployment.model.stacks[0].num_layers,
    }  # fmt: skip
    with pytest.raises(RefusedError, match="Unrecognized options"):
        taken("torchtitan", {"options": ["--parallelism.zero", "3", *options]})


# --- the real thing

VOCABULARY, LENGTH, SEQUENCES, STEPS = 128, 32, 16, 10


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama's configuration, its weights as they start, and eight sequences over and over."""
    folder = tmp_path_factory.mktemp("corner")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    chance = random.Random(1)  # noqa: S311 - data
    rows = [[chance.randrange(3, VOCABULARY) for _ in range(LENGTH)] for _ in range(8)]
    lines = [json.dumps({"input_ids": rows[i % 8]}) for i in range(64)]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    taken("weights", {"folder": str(folder / "tiny")})
    return folder


def tiny(corner: Path, layout: dict[str, Any], output: Path, **more: Any) -> Deployment:
    """A plan of ten steps on the two sockets of a machine without accelerators."""
    document = {
        "model": str(corner / "tiny" / "config.json"), "task": "pretrain", "name": "tiny",
        "data": {"tokens": STEPS * SEQUENCES * LENGTH, "seq_len": LENGTH, "global_batch": SEQUENCES},
        "constraints": {"instances": ["m7i.48xlarge"], "max_gpus": 2, "stack": "hf-trainer"},
        "checkpoints": {"every": "1s"},
    } | more  # fmt: skip
    changes = {
        "layout": {"dp": 2, "pp": 1, "tp": 1, "micro_batch": 4, "zero": 0} | layout,
        "figures": {"step_s": 0.2},  # a checkpoint each second, and so every fifth step
    }
    settings = {"data": str(corner / "rows.jsonl"), "output": str(output), "model_path": str(corner / "tiny")}
    return deployment_of(document, changes, **settings, learning_rate=1e-2)


@pytest.mark.parametrize(
    ("target", "layout", "more"),
    [
        ("torchrun", {"micro_batch": 4, "recompute": "full"}, {}),
        ("accelerate", {"micro_batch": 2}, {"task": "finetune", "method": {"kind": "lora", "rank": 4}}),
    ],
    ids=["torchrun", "accelerate"],
)
def test_an_exported_job_trains(
    target: str, layout: dict[str, Any], more: dict[str, Any], corner: Path, tmp_path: Path
) -> None:
    deployment = tiny(corner, layout, tmp_path / "out", **more)
    made = exported_plan(target, deployment)
    folder = written(made, tmp_path / "job")
    assert "export OMP_NUM_THREADS=96" in made.files["run.sh"]  # of a socket of the planned machine
    here = made.files["run.sh"].replace("OMP_NUM_THREADS=96", "OMP_NUM_THREADS=1")
    (folder / "run.sh").write_text(here, encoding="utf-8")
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    with (Path(tempfile.gettempdir()) / "flopwise-torchrun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # launchers meet at one port of the machine
        done = subprocess.run(
            ["/bin/bash", str(folder / "run.sh"), "--logging_steps", "1"],
            env=environment, capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    losses = [line["loss"] for line in state["log_history"] if "loss" in line]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - (0.02 if "method" in more else 0.5)
    assert {path.name for path in (tmp_path / "out").glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-10"}
    job = deployment.training
    assert job is not None
    rows = 64  # of the data: one epoch
    seen = state["epoch"] * rows
    assert seen == state["global_step"] * SEQUENCES == STEPS * job.recipe.global_batch
    assert seen * LENGTH == job.tokens
    weights = "adapter_model.safetensors" if "method" in more else "model.safetensors"
    assert (tmp_path / "out" / weights).exists()
