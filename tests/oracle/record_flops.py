"""Counts operations of real models with PyTorch's FlopCounterMode, on the CPU: `python record_flops.py`.

The meta device would count the same in twice the time: it derives each operation's shape in Python. Eager attention
(two batched products, which the counter sees) and batched experts (grouped products it does not see).
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from flop_cases import CASES

RECORD = Path(__file__).with_name("flops.json")
BATCH, SEQ, ENCODER = 2, 40, 24
NO_MASK = ("mamba", "falcon_mamba", "opt", "bloom", "mpt", "falcon", "albert", "deberta-v2", "mpnet", "zamba", "zamba2")
ENCODERS = (
    "bert",
    "roberta",
    "distilbert",
    "modernbert",
    "xlm-roberta",
    "camembert",
    "electra",
    "mpnet",
    "albert",
    "deberta-v2",
)
IMAGES = ("vit", "deit", "clip", "siglip", "dinov2", "dinov2_with_registers")
TEXT_TO_TEXT = ("t5", "mt5", "umt5", "bart")


def _model_and_inputs(case: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers
    from transformers import AutoConfig

    fields = dict(case)
    kind = fields.pop("model_type")
    config = AutoConfig.for_model(kind, **fields)
    ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
    mask = torch.zeros(BATCH, 1, SEQ, SEQ)  # in four dimensions: nothing then asks for its values
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    auto = transformers.AutoModelForCausalLM
    if kind in TEXT_TO_TEXT:
        auto = transformers.AutoModelForSeq2SeqLM
        inputs = {"input_ids": ids[:, :ENCODER], "decoder_input_ids": ids}
    elif kind == "whisper":
        auto = transformers.WhisperForConditionalGeneration
        mel = torch.zeros(BATCH, case["num_mel_bins"], 2 * case["max_source_positions"])
        inputs = {"input_features": mel, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    elif kind in IMAGES:
        auto = transformers.AutoModelForImageClassification if kind in ("vit", "deit") else transformers.AutoModel
        size = case.get("vision_config", case)["image_size"]
        pixels = {"pixel_values": torch.zeros(BATCH, 3, size, size)}
        inputs = pixels
        if "text_config" in case:  # texts are padded to the longest that there is
            padded = (BATCH, case["text_config"]["max_position_embeddings"])
            inputs = {"input_ids": torch.zeros(padded, dtype=torch.long), **pixels}
    elif kind in ENCODERS:
        auto = transformers.AutoModel
    if kind in NO_MASK:
        del inputs["attention_mask"]
    options: dict[str, Any] = {"attn_implementation": "eager"}
    if any("expert" in key for key in fields):
        options["experts_implementation"] = "batched_mm"
    model = (auto._from_config if hasattr(auto, "_from_config") else auto.from_config)(config, **options)
    return model.train(), inputs


def _total(output: Any) -> Any:
    """A scalar that depends on everything that the model puts out."""
    if "logits_per_image" in output:
        return output.logits_per_image.float().mean()
    tensors = [output.logits] if "logits" in output else [output.last_hidden_state]
    if output.get("pooler_output") is not None:
        tensors.append(output.pooler_output)
    return sum(t.float().mean() for t in tensors)


def count(case: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward operations of one case."""
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs = _model_and_inputs(case)
    kwargs = {} if case["model_type"] in (*IMAGES, *ENCODERS) else {"use_cache": False}
    with FlopCounterMode(display=False) as forward:
        loss = _total(model(**inputs, **kwargs))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return {
        "config": case,
        "batch": BATCH,
        "seq": SEQ,
        "encoder": ENCODER,
        "forward": forward.get_total_flops(),
        "backward": backward.get_total_flops(),
    }


def record(names: list[str] | None = None) -> dict[str, Any]:
    """All cases with the versions of what counted them."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {name: count(CASES[name]) for name in names or CASES}
    return {"torch": torch.__version__, "transformers": transformers.__version__, "cases": cases}


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=1) + "\n")
