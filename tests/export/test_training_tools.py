"""Exported training jobs before the libraries that read them, and run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plans import FINETUNE, PRETRAIN, deployment_of
from test_training import DATA_PARALLEL, FULL, spread
from tools import need

from flopwise.export.command import Command
from flopwise.export.deployment import Deployment
from flopwise.export.exported import Exported
from flopwise.export.targets import exported_plan
from flopwise.export.training_command import training_command
from flopwise.facts.catalog import load_facts
from flopwise.training.adapters import trainable_parameters

pytestmark = [pytest.mark.exports, pytest.mark.filterwarnings("default")]

MEGATRON_LM = {
    "--micro-batch-size", "--global-batch-size", "--train-iters", "--optimizer", "--lr", "--save", "--load",
    "--save-interval", "--ckpt-format", "--async-save", "--pretrained-checkpoint", "--exit-signal-handler",
    "--log-throughput", "--data-path", "--split", "--eval-iters", "--tokenizer-type", "--tokenizer-model",
    "--vocab-size", "--seq-length", "--max-position-embeddings", "--position-embedding-type", "--rotary-percent",
    "--swiglu", "--squared-relu", "--disable-bias-linear", "--untie-embeddings-and-output-weights",
    "--group-query-attention", "--num-virtual-stages-per-pipeline-rank", "--use-distributed-optimizer",
    "--overlap-grad-reduce", "--overlap-param-gather", "--num-distributed-optimizer-instances",
    "--accumulate-allreduce-grads-in-fp32", "--optimizer-cpu-offload", "--multi-latent-attention", "--num-experts",
    "--attention-backend", "--bf16", "--fp16",
}  # fmt: skip
"""Options of Megatron-LM's own parser, not derived from Megatron-Core's classes: megatron/training/arguments.py at
commit 000c4ac24f61159c138b0975def722c65245983c, of Megatron-Core 0.16."""


def module(name: str) -> Any:
    """A library of the group `training`."""
    need(importlib.util.find_spec(name) is not None, name, "make exports")
    return importlib.import_module(name)


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
    transformers, loader = module("transformers"), module("accelerate.commands.config.config_args")
    made = exported_plan("accelerate", spread(LAYOUTS[layout]))
    folder = written(made, tmp_path)
    read = json.loads(made.files["training_arguments.json"]) | {"output_dir": str(tmp_path / "out"), "bf16": False}
    (arguments,) = transformers.HfArgumentParser([transformers.TrainingArguments]).parse_dict(read)
    assert (arguments.max_steps, arguments.per_device_train_batch_size) == (382, 2)
    assert arguments.gradient_accumulation_steps == 4
    config = loader.load_config_from_file(str(folder / "accelerate.yaml"))
    assert config.num_processes == 8


def test_transformers_refuses_a_field_that_it_does_not_have() -> None:
    transformers = module("transformers")
    with pytest.raises(ValueError, match="not used"):
        transformers.HfArgumentParser([transformers.TrainingArguments]).parse_dict({"micro_batch": 2})


def test_accelerate_refuses_a_key_that_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("distributed_type: FSDP\nshards: 8\n", encoding="utf-8")
    with pytest.raises(ValueError, match="unknown keys"):
        module("accelerate.commands.config.config_args").load_config_from_file(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    "layout",
    [
        {"zero": 3, "offload": ["optimizer", "parameters"]},
        {"zero": 2, "recompute": "full"},
        {"zero": 1, "precision": "fp16"},
        {"zero": 0},
    ],
)
def test_deepspeed_takes_its_configuration(layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = module("deepspeed.runtime.config")
    document = FULL | ({"precision": "fp16"} if layout.get("precision") == "fp16" else {})
    made = exported_plan("deepspeed", spread({"stack": "deepspeed-zero3"} | layout, document=document))
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(config.dist, "get_world_size", lambda *_: 8)
    monkeypatch.setattr(config.dist, "get_rank", lambda *_: 0)
    taken = config.DeepSpeedConfig(json.loads(made.files["deepspeed.json"]))
    assert (taken.train_batch_size, taken.train_micro_batch_size_per_gpu, taken.gradient_accumulation_steps) == (
        64,
        2,
        4,
    )
    assert taken.zero_optimization_stage == layout["zero"]
    broken = json.loads(made.files["deepspeed.json"]) | {"train_batch_size": 63}
    with pytest.raises(AssertionError):
        config.DeepSpeedConfig(broken)


@pytest.mark.parametrize(
    "name",
    ["Llama-3.1-8B", "gpt2", "gpt-j-6b", "Qwen2.5-7B", "Mistral-7B", "Qwen3-8B", "bert-base-uncased", "opt-1.3b",
     "pythia-1.4b", "gemma-2-9b", "phi-2"],
)  # fmt: skip
def test_peft_trains_as_many_parameters_as_planned(name: str) -> None:
    torch, transformers, peft = module("torch"), module("transformers"), module("peft")
    facts = load_facts()
    deployment = deployment_of(FINETUNE | {"model": "Llama-3.1-8B", "method": {"kind": "lora", "rank": 8}})
    model = facts.model(name)
    made = dataclasses.replace(deployment, model=model)
    from flopwise.export.adapters import adapter_config

    config = next(row["config"] for row in records() if row["name"] == model.name)
    own = transformers.AutoConfig.for_model(**config)
    kind = transformers.AutoModelForMaskedLM if model.kind == "encoder" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        bare = kind.from_config(own)
    adapted = peft.get_peft_model(bare, peft.LoraConfig.from_peft_type(**adapter_config(made)))
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert deployment.training is not None
    lora = deployment.training.recipe.lora
    assert lora is not None
    assert trained == trainable_parameters(model, lora)


def records() -> Iterator[dict[str, Any]]:
    path = Path(__file__).parents[2] / "src/flopwise/data/models.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def test_bitsandbytes_settings_are_read_by_transformers() -> None:
    transformers = module("transformers")
    deployment = deployment_of(FINETUNE | {"method": {"kind": "qlora", "rank": 16}})
    read = json.loads(exported_plan("peft", deployment).files["quantization.json"])
    config = transformers.BitsAndBytesConfig.from_dict(read)
    assert config.load_in_4bit
    assert config.bnb_4bit_quant_type == "nf4"
    assert str(config.bnb_4bit_compute_dtype) == "torch.bfloat16"


# --- Megatron


def core_options(*classes: Any) -> dict[str, tuple[str, Any]]:
    """Options that Megatron-LM derives from the fields of Megatron-Core's classes: the field and its type."""
    found: dict[str, tuple[str, Any]] = {}
    for one in classes:
        hints = typing.get_type_hints(one)
        for field in dataclasses.fields(one):
            names = field.metadata.get("argparse_meta", {}).get("arg_names", [f"--{field.name.replace('_', '-')}"])
            found |= dict.fromkeys(names, (field.name, hints[field.name]))
    return found


def number(kind: Any, text: str) -> Any:
    """A text as the type of a field; lists are JSON."""
    if text.startswith("["):
        return json.loads(text)
    kinds = [k for k in typing.get_args(kind) if k is not types.NoneType] or [kind]
    for one in (int, float, str):
        if one in kinds:
            return one(text)
    return text


MEGATRON_LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": ("Llama-3.1-8B", {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "interleave": 2, "recompute": "full"}),
    "context": ("Llama-3.1-8B", {"dp": 2, "tp": 2, "cp": 2, "zero": 1, "recompute": "selective"}),
    "experts": ("Mixtral-8x7B", {"dp": 8, "ep": 8, "zero": 1}),
    "latent": ("DeepSeek-V2-Lite", {"dp": 8, "ep": 8, "zero": 1, "recompute": "full", "recompute_every": 2}),
    "learned positions": ("gpt2-medium", {"dp": 8, "zero": 1}),
    "fp8": ("Llama-3.1-8B", {"dp": 8, "zero": 1, "precision": "fp8"}),
}


@pytest.mark.parametrize("case", MEGATRON_LAYOUTS)
def test_megatron_core_takes_the_arguments(case: str) -> None:
    config = module("megatron.core.transformer.transformer_config")
    name, layout = MEGATRON_LAYOUTS[case]
    document = PRETRAIN | {"model": name} | ({"precision": "fp8"} if case == "fp8" else {})
    document["data"] = PRETRAIN["data"] | {"seq_len": 1024}
    deployment = spread({"stack": "megatron-te"} | layout, document=document, learning_rate=3e-4)
    given = options_of(training_command(deployment))
    kind = config.MLATransformerConfig if "--multi-latent-attention" in given else config.TransformerConfig
    known = core_options(kind)
    assert set(given) - set(known) - MEGATRON_LM == set()
    values: dict[str, Any] = {}
    for option, words in given.items():
        if option in known:
            field, hint = known[option]
            values[field] = words if field == "recompute_modules" else number(hint, words[0]) if words else True
    values |= {"num_moe_experts": int(given["--num-experts"][0])} if "--num-experts" in given else {}
    values |= {"bf16": True, "add_bias_linear": "--disable-bias-linear" not in given, "pipeline_dtype": "bf16"}
    values.pop("attention_backend", None)
    if layout.get("interleave", 1) > 1:
        values["virtual_pipeline_model_parallel_size"] = layout["interleave"]
    made = kind(**values)
    shape = deployment.model.stacks[0]
    assert (made.num_layers, made.hidden_size) == (shape.num_layers, shape.width)
    assert made.tensor_model_parallel_size == layout.get("tp", 1)


def test_megatron_core_refuses_what_does_not_divide() -> None:
    config = module("megatron.core.transformer.transformer_config")
    with pytest.raises(ValueError, match="multiple of tensor_model_parallel_size"):
        config.TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=6, tensor_model_parallel_size=4)


def test_layers_that_do_not_divide_lie_as_named() -> None:
    layouts = module("megatron.core.transformer.pipeline_parallel_layer_layout").PipelineParallelLayerLayout
    layout = {"stack": "megatron-te", "dp": 1, "pp": 5, "micro_batch": 1}
    deployment = deployment_of(
        PRETRAIN | {"model": "Llama-3.1-8B"}, {"num_gpus": 5, "layout": DATA_PARALLEL | {"zero": 0} | layout}
    )
    text = options_of(training_command(deployment))["--pipeline-model-parallel-layout"][0]
    stages = layouts.parse_str_to_list(text)
    assert [sum(str(part).endswith(("t", "decoder")) for part in stage) for stage in stages] == [6, 7, 7, 6, 6]


def options_of(command: Command) -> dict[str, list[str]]:
    """Options behind the program."""
    words = (
        command.args[command.args.index("pretrain_gpt.py") + 1 :] if "pretrain_gpt.py" in command.args else command.args
    )
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[last := word] = []
        else:
            found[last].append(word)
    return found


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
    need(importlib.util.find_spec("triton") is not None, "triton", "make exports")
    manager = module("torchtitan.config").ConfigManager
    deployment = spread(layout, document=PRETRAIN | {"model": name})
    args = training_command(deployment).args
    config = manager().parse_args(list(args[args.index("torchtitan.train") + 1 :]))
    assert config.training.global_batch_size == 1024
    assert config.training.steps == math.ceil(100e9 / (1024 * 4096))
    assert config.parallelism.tensor_parallel_degree == layout.get("tp", 1)
    assert config.parallelism.data_parallel_shard_degree == layout.get("shard", layout.get("dp", 8))
    assert config.compile.enable is True
    recompute = type(config.activation_checkpoint).__qualname__.lower()
    assert layout.get("recompute", "none") in recompute
    with pytest.raises(SystemExit):
        manager().parse_args([*args[args.index("torchtitan.train") + 1 :], "--parallelism.zero", "3"])


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
    transformers = module("transformers")
    transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder / "tiny")
    ).save_pretrained(folder / "tiny")
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
        ("torchrun", {}, {}),
        ("accelerate", {"micro_batch": 8, "recompute": "full"}, {}),
        ("accelerate", {"micro_batch": 2}, {"task": "finetune", "method": {"kind": "lora", "rank": 4}}),
        ("deepspeed", {"zero": 1}, {}),
    ],
    ids=["torchrun", "accelerate", "adapters", "deepspeed"],
)
def test_an_exported_job_trains(
    target: str, layout: dict[str, Any], more: dict[str, Any], corner: Path, tmp_path: Path
) -> None:
    for name in ("accelerate", "datasets", "peft", "deepspeed"):
        module(name)
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
