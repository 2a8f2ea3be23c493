"""Trains a text model with Hugging Face's Trainer: what job.json says, with the arguments of training_arguments.json.

    torchrun --nproc-per-node 8 train.py training_arguments.json [--learning_rate 1e-5 ...]

Options of transformers.TrainingArguments behind the file replace what it says. A run that finds checkpoints in its
output folder goes on from the last one. On SIGTERM or SIGUSR1 it saves after the step that runs and stops.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset, load_from_disk
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import get_last_checkpoint

JOB, ADAPTER, QUANTIZATION = Path("job.json"), Path("adapter_config.json"), Path("quantization.json")
FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".txt": "text"}
IGNORED = -100
"""The label of what counts in no loss."""

Job = dict[str, Any]


def main() -> None:
    """Train, then save the model where checkpoints go."""
    arguments = read_arguments(sys.argv[1], sys.argv[2:])
    job: Job = json.loads(JOB.read_text(encoding="utf-8"))
    if job["recompute"] == "operations":
        arguments.activation_checkpointing_kwargs |= {"context_fn": saved_products}
    model = load_model(job)
    with arguments.main_process_first():
        rows = load_rows(job)
    stop = StopOnSignal()
    trainer = PlannedTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collator(job), callbacks=[stop]
    )
    trainer.offloads = job["offload_activations"]
    folder = Path(arguments.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.is_dir() else None)
    if not stop.pending:
        if trainer.is_fsdp_enabled:  # checkpoints are in shards, the model at the end is whole
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model()
        trainer.save_state()


def read_arguments(file: str, others: list[str]) -> TrainingArguments:
    """The arguments in a file, overridden by those that follow it on the command line."""
    parser = HfArgumentParser([TrainingArguments])
    parser.set_defaults(**json.loads(Path(file).read_text(encoding="utf-8")))
    (arguments,) = parser.parse_args_into_dataclasses(args=others)
    return arguments


def load_model(job: Job) -> PreTrainedModel:
    """The model with pretrained or initial weights, and with adapters if the job has them."""
    kind = AutoModelForMaskedLM if job["objective"] == "masked" else AutoModelForCausalLM
    options: dict[str, Any] = {"dtype": getattr(torch, job["dtype"]), "attn_implementation": job["attention"]}
    if QUANTIZATION.exists():
        read = json.loads(QUANTIZATION.read_text(encoding="utf-8"))
        options["quantization_config"] = BitsAndBytesConfig.from_dict(read)
    if job["from_weights"]:
        model = kind.from_pretrained(job["model"], **options)
    else:
        model = kind.from_config(AutoConfig.from_pretrained(job["model"]), **options)
    model.config.use_cache = False
    freeze(model, job["frozen"])
    if not ADAPTER.exists():
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training  # noqa: PLC0415 - only with adapters

    if QUANTIZATION.exists():
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapters = LoraConfig.from_pretrained(".")
    return get_peft_model(model, adapters, autocast_adapter_dtype=job["adapter_dtype"] == "float32")


def freeze(model: PreTrainedModel, frozen: dict[str, Any]) -> None:
    """Leave embedding, head and the first layers as they are, as far as they are named."""
    if frozen.get("embedding"):
        model.get_input_embeddings().requires_grad_(requires_grad=False)
    if frozen.get("head"):
        model.get_output_embeddings().requires_grad_(requires_grad=False)
    count = model.config.get_text_config().num_hidden_layers
    layers = next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count)
    for layer in layers[: frozen.get("layers", 0)]:
        layer.requires_grad_(requires_grad=False)


def load_rows(job: Job) -> Dataset:
    """Sequences of token ids: `input_ids` of the rows, else their text, tokenized."""
    rows = load_data(job["data"])
    if "input_ids" not in rows.column_names:
        tokenizer = AutoTokenizer.from_pretrained(job["model"])
        limit = job["seq_len"] if job["packing"] == "padded" else None
        rows = rows.map(
            partial(tokenize, tokenizer=tokenizer, limit=limit), batched=True, remove_columns=rows.column_names
        )
    if job["packing"] == "padded":
        return rows
    one = partial(blocks, length=job["seq_len"], documents=job["packing"] == "packed")
    rows = rows.map(one, batched=True, remove_columns=rows.column_names)
    if not len(rows):
        raise SystemExit(f"{job['data']} holds fewer tokens than one sequence of {job['seq_len']:,}")
    return rows


def load_data(place: str) -> Dataset:
    """Rows of a file, of a folder of files, of a saved data set, or of the hub."""
    path = Path(place)
    if (path / "dataset_info.json").exists():
        return load_from_disk(place)
    if path.is_file():
        return load_dataset(FORMATS[path.suffix], data_files=place, split="train")
    return load_dataset(place, split="train")


def tokenize(rows: dict[str, list[Any]], *, tokenizer: Any, limit: int | None) -> dict[str, list[list[int]]]:
    """Token ids of rows with `text`, or with `messages` of a conversation; each ends with the end token."""
    if "messages" in rows:
        texts = [tokenizer.apply_chat_template(messages, tokenize=False) for messages in rows["messages"]]
        return {"input_ids": tokenizer(texts, truncation=limit is not None, max_length=limit)["input_ids"]}
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = tokenizer(rows["text"], truncation=False)["input_ids"]
    return {"input_ids": [(one + end)[:limit] for one in ids]}


def blocks(rows: dict[str, list[list[int]]], *, length: int, documents: bool) -> dict[str, list[list[int]]]:
    """Rows one behind the other, cut into sequences of `length` tokens; the rest of them is left out.

    `documents`: positions start anew with each row, so that attention stays within it.
    """
    whole = {"input_ids": list(chain.from_iterable(rows["input_ids"]))}
    if documents:
        whole["position_ids"] = list(chain.from_iterable(range(len(row)) for row in rows["input_ids"]))
    starts = range(0, len(whole["input_ids"]) - length + 1, length)
    cut = {name: [ids[start : start + length] for start in starts] for name, ids in whole.items()}
    return cut | {"labels": cut["input_ids"]}


def collator(job: Job) -> Any:
    """The function that makes a batch of rows."""
    if job["objective"] == "masked":
        return DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(job["model"]))
    return padded_batch if job["packing"] == "padded" else default_data_collator


def padded_batch(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Rows filled up to the longest of them; what is filled in counts in no loss."""
    longest = max(len(row["input_ids"]) for row in rows)

    def row_of(ids: list[int], value: int) -> list[int]:
        return ids + [value] * (longest - len(ids))

    return {
        "input_ids": torch.tensor([row_of(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([row_of([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([row_of(row["input_ids"], IGNORED) for row in rows]),
    }


class PlannedTrainer(Trainer):
    """Trainer that keeps what the backward pass needs in host memory, where the plan says so."""

    offloads = False

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *others: Any, **named: Any) -> Any:
        """The loss as ever."""
        with kept_on_host(model) if self.offloads else nullcontext():
            return super().compute_loss(model, inputs, *others, **named)


@contextmanager
def kept_on_host(model: torch.nn.Module) -> Iterator[None]:
    """Tensors that are saved for the backward pass go to host memory, but for the model's own."""
    own = {part.untyped_storage().data_ptr() for part in model.parameters() if part.device.type != "meta"}

    def to_host(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        if tensor.device.type == "cpu" or tensor.untyped_storage().data_ptr() in own:
            return tensor.device, tensor
        host = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def get(kept: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, tensor = kept
        return tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(to_host, get):
        yield


def saved_products() -> tuple[Any, Any]:
    """Contexts of a layer that keeps every second matrix product and attention, and computes the rest again."""
    from torch.utils.checkpoint import (  # noqa: PLC0415 - only with selective recompute
        CheckpointPolicy,
        create_selective_checkpoint_contexts,
    )

    counts = {False: 0, True: 0}
    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    attention = {
        torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - the operator's name
        torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - same
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - same
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001 - same
    }

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in products:
            counts[context.is_recompute] += 1
            keep = counts[context.is_recompute] % 2 == 1
        else:
            keep = operator in attention
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)
    return contexts


class StopOnSignal(TrainerCallback):
    """Saves and stops after the step in which any rank got SIGTERM or SIGUSR1."""

    def __init__(self) -> None:
        """Listen."""
        self.pending = False
        for one in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(one, self._ask)

    def _ask(self, *_: Any) -> None:
        self.pending = True

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """All ranks stop at the same step."""
        del state
        if torch.distributed.is_initialized():
            flag = torch.tensor(float(self.pending), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self.pending = bool(flag.item())
        if self.pending:
            control.should_save = control.should_training_stop = True


if __name__ == "__main__":
    main()
