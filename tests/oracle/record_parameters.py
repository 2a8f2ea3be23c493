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

CATALOG = Path(__file__).resolve().parents[2] / "src" / "flopwise" / "data" / "models.jsonl"
TARGET = Path(__file__).resolve().parent / "parameters.json"
BASE = {
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "distilbert",
    "modernbert",
    "deberta-v2",
    "albert",
    "mpnet",
    "nomic_bert",
    "clip",
    "siglip",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
}
IMAGE_CLASSES = {"vit", "deit", "vit_msn", "ijepa"}
OURS = {
    "gpt3",
    "megatron",
    "palm",
    "internlm2",
    "dbrx",
    "grok",
    "arctic",
    "nemotron-nas",
    "step3_text",
    "phi3small",
}  # types of ours, or of code that lives on the hub
SAME = {"kimi_k2": "deepseek_v3"}  # types that the hub's code makes of a class in transformers
SEQUENCE = {"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "m2m_100", "marian"}
SPEECH = {"whisper"}


def build(config: dict[str, Any]) -> Any:
    """The model of transformers that `config` makes, on the meta device."""
    import torch
    import transformers as t

    t.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    given = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    kind = config["model_type"]
    made = t.AutoConfig.for_model(kind, **given)
    if "architectures" in config:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(t, config["architectures"][0])._from_config(made)
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


def catalog() -> dict[str, dict[str, Any]]:
    """The configurations of the shipped catalog that are of a type transformers has, by name."""
    found: dict[str, dict[str, Any]] = {}
    for line in CATALOG.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        config = record.get("config")
        if config is not None and config["model_type"] not in OURS:
            found[record["name"]] = config | {"model_type": SAME.get(config["model_type"], config["model_type"])}
    return found


def main() -> None:
    """Count all and write the file."""
    import torch
    import transformers

    record: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    for part, configs in (("small", CONFIGURATIONS), ("catalog", catalog())):
        counts = record[part] = {}
        for name, config in configs.items():
            try:
                counts[name] = count(config)
            except Exception as problem:  # noqa: BLE001 - a script that reports what it could not build
                print(f"{part} {name}: {type(problem).__name__}: {str(problem)[:300]}")  # noqa: T201 - a script that reports
    TARGET.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
