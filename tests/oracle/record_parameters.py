"""Record what transformers counts: builds each model without memory (torch's meta device) and sums its parameters.

Run: `python tests/oracle/record_parameters.py` with torch and transformers installed; writes `parameters.json` beside
it. `tests/ops/test_tensors.py` compares our tables with the recorded numbers always, and derives them afresh where
torch is there.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from configurations import CONFIGURATIONS

TARGET = Path(__file__).resolve().parent / "parameters.json"
BASE = {
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "distilbert",
    "modernbert",
    "deberta-v2",
    "albert",
    "mpnet",
    "clip",
    "siglip",
    "dinov2",
}
IMAGE_CLASSES = {"vit"}
SEQUENCE = {"t5", "mt5", "umt5", "bart"}
SPEECH = {"whisper"}
EXPERTS_SKIPPED = (
    "mlp.experts.",
    "feed_forward.experts.",
    "block_sparse_moe.experts.",
    "moe.experts.",
    "mixer.experts.",
)


def build(config: dict[str, Any]) -> Any:
    """The model of transformers that `config` makes, on the meta device."""
    import torch
    import transformers as t

    t.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    given = {k: v for k, v in config.items() if k != "model_type"}
    kind = config["model_type"]
    made = t.AutoConfig.for_model(kind, **given)
    if kind in BASE:
        auto: Any = t.AutoModel
    elif kind in IMAGE_CLASSES:
        auto = t.AutoModelForImageClassification
    elif kind in SEQUENCE:
        auto = t.AutoModelForSeq2SeqLM
    elif kind in SPEECH:
        auto = t.AutoModelForSpeechSeq2Seq
    elif "vision_config" in (type(made).sub_configs or {}):
        auto = t.AutoModelForImageTextToText
    else:
        auto = t.AutoModelForCausalLM
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return auto.from_config(made)


def count(config: dict[str, Any]) -> int:
    """Parameters of the model that `config` makes, tied ones once."""
    return sum(p.numel() for p in build(config).parameters())


def main() -> None:
    """Count all and write the file."""
    import torch
    import transformers

    counts: dict[str, int] = {}
    for name, config in CONFIGURATIONS.items():
        try:
            counts[name] = count(config)
        except Exception as problem:  # noqa: BLE001 - a script that reports what it could not build
            print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")  # noqa: T201
    record = {"torch": torch.__version__, "transformers": transformers.__version__, "parameters": counts}
    TARGET.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
