"""What training libraries make of exported files; a program of its own: `training_readers.py MODULE...`.

It loads the modules, which takes seconds, and then answers lines of JSON with lines of JSON: the name of a reader and
what it reads; whether it was taken, and what was understood or complained of. Each is read in a process forked for it,
so that nothing that one leaves behind reaches the next.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
import typing
from pathlib import Path
from typing import Any


def arguments(document: dict[str, Any]) -> dict[str, Any]:
    """Fields of TrainingArguments as transformers takes them."""
    from transformers import HfArgumentParser, TrainingArguments

    (taken,) = HfArgumentParser([TrainingArguments]).parse_dict(document)
    names = ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "save_steps", "optim")
    return {name: str(getattr(taken, name)) for name in names}


def accelerate(document: dict[str, Any]) -> dict[str, Any]:
    """Accelerate's configuration, from a file."""
    from accelerate.commands.config.config_args import load_config_from_file

    taken = load_config_from_file(document["path"])
    return {"processes": taken.num_processes, "kind": str(taken.distributed_type.value), "fsdp": taken.fsdp_config}


def deepspeed(document: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration, of so many ranks."""
    os.environ["WORLD_SIZE"] = str(document["ranks"])
    from deepspeed.runtime import config

    config.dist.get_world_size = lambda *_: document["ranks"]
    config.dist.get_rank = lambda *_: 0
    taken = config.DeepSpeedConfig(document["config"])
    return {
        "batches": [taken.train_batch_size, taken.train_micro_batch_size_per_gpu, taken.gradient_accumulation_steps],
        "stage": taken.zero_optimization_stage,
    }


def peft(document: dict[str, Any]) -> dict[str, Any]:
    """Parameters that adapters train on a model without weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    kind = AutoModelForMaskedLM if document["masked"] else AutoModelForCausalLM
    with torch.device("meta"):
        bare = kind.from_config(AutoConfig.for_model(**document["model"]))
    adapted = get_peft_model(bare, LoraConfig.from_peft_type(**document["adapters"]))
    return {"trained": sum(p.numel() for p in adapted.parameters() if p.requires_grad)}


def quantization(document: dict[str, Any]) -> dict[str, Any]:
    """Settings of bitsandbytes as transformers takes them."""
    from transformers import BitsAndBytesConfig

    taken = BitsAndBytesConfig.from_dict(document)
    return {"bits": 4 if taken.load_in_4bit else 8, "kind": taken.bnb_4bit_quant_type,
            "dtype": str(taken.bnb_4bit_compute_dtype)}  # fmt: skip


def megatron(document: dict[str, Any]) -> dict[str, Any]:
    """Megatron-Core's configuration of options with their values; those that it does not know are listed.

    Megatron-LM derives options from the fields of these classes.
    """
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    given: dict[str, list[str]] = document["options"]
    kind = MLATransformerConfig if "--multi-latent-attention" in given else TransformerConfig
    hints, values, known = typing.get_type_hints(kind), dict[str, Any](), set[str]()
    for field in dataclasses.fields(kind):
        for name in field.metadata.get("argparse_meta", {}).get("arg_names", [f"--{field.name.replace('_', '-')}"]):
            known.add(name)
            if name in given and name != "--attention-backend":
                words = given[name]
                several = field.name == "recompute_modules"
                values[field.name] = words if several else number(hints[field.name], words[0]) if words else True
    values |= {"bf16": True, "add_bias_linear": "--disable-bias-linear" not in given, "pipeline_dtype": "bf16"}
    if "--num-experts" in given:
        values["num_moe_experts"] = int(given["--num-experts"][0])
    if "--num-virtual-stages-per-pipeline-rank" in given:
        chunks = int(given["--num-virtual-stages-per-pipeline-rank"][0])
        values["virtual_pipeline_model_parallel_size"] = chunks
    taken = kind(**values)
    names = ("num_layers", "hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size")
    return {"unknown": sorted(set(given) - known), **{name: getattr(taken, name) for name in names}}


def number(kind: Any, text: str) -> Any:
    """A text as the type of a field; lists are JSON."""
    if text.startswith("["):
        return json.loads(text)
    kinds = [k for k in typing.get_args(kind) if k is not types.NoneType] or [kind]
    return next((one(text) for one in (int, float) if one in kinds), text)


def stages(document: dict[str, Any]) -> dict[str, Any]:
    """Layers of each pipeline stage of Megatron's layout."""
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    parsed = PipelineParallelLayerLayout.parse_str_to_list(document["layout"])
    return {"layers": [sum("t" in str(part) or "decoder" in str(part) for part in stage) for stage in parsed]}


def torchtitan(document: dict[str, Any]) -> dict[str, Any]:
    """Options as torchtitan's own manager takes them."""
    from torchtitan.config import ConfigManager

    taken = ConfigManager().parse_args(document["options"])
    degrees = taken.parallelism
    return {
        "steps": taken.training.steps, "batch": taken.training.global_batch_size, "compiled": taken.compile.enable,
        "tp": degrees.tensor_parallel_degree, "shard": degrees.data_parallel_shard_degree,
        "recompute": type(taken.activation_checkpoint).__qualname__, "layers": len(taken.model_spec.model.layers),
    }  # fmt: skip


def weights(document: dict[str, Any]) -> dict[str, Any]:
    """Weights of a model as they start, beside its config.json."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(document["folder"])
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return {}


READERS = (arguments, accelerate, deepspeed, peft, quantization, megatron, stages, torchtitan, weights)


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """What the reader of a question understood, or what it complained of, read in a process of its own."""
    with tempfile.TemporaryFile("w+") as understood, tempfile.TemporaryFile("w+") as complaint:
        child = os.fork()
        if not child:
            os.dup2(complaint.fileno(), 1)
            os.dup2(complaint.fileno(), 2)
            try:
                reader = next(reader for reader in READERS if reader.__name__ == question["reader"])
                json.dump(reader(question["document"]), understood)
                understood.flush()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - whatever a library complains with
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        for file in (understood, complaint):
            file.seek(0)
        taken = os.waitstatus_to_exitcode(status) == 0
        return {"taken": taken, "understood": json.load(understood) if taken else complaint.read()}


def main(modules: list[str]) -> None:
    """Answer the lines of standard input; what the libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        answers.write(json.dumps(answered(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
