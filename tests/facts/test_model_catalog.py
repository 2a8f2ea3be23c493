"""The shipped catalog as data, and finding models in it by the names that people use."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from each import each
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models import catalog
from flopwise.facts.models.catalog import load_model
from named import FACTS

LINES = [
    json.loads(line)
    for line in resources.files("flopwise").joinpath("data/models.jsonl").read_text(encoding="utf-8").splitlines()
]


@each("record", LINES, label=lambda r: r["name"])
def test_every_line_is_complete(record: dict[str, object]) -> None:
    from flopwise.facts.models.catalog import _check

    _check(record, "models.jsonl")
    assert record["source"]
    assert record["date"]
    assert record["confidence"] in ("high", "medium", "low")
    if record.get("config") is not None:
        assert isinstance(record["parameters"], int)
        assert isinstance(record["active_parameters"], int)
        assert record["active_parameters"] <= record["parameters"]


def test_stated_parameters_are_those_of_the_tables() -> None:
    from flopwise.ops.tensors import active_parameters, parameters

    for record in LINES:
        if record.get("config") is not None:
            model = load_model(record["name"])
            assert (parameters(model), active_parameters(model)) == (record["parameters"], record["active_parameters"])


def test_every_model_is_found_by_its_name_and_hub_id_in_any_case() -> None:
    for record in LINES:
        assert load_model(record["name"].upper()).name == record["name"]
    ids = [r["hf_id"] for r in LINES if r["hf_id"]]
    assert len(ids) == len(set(ids))
    for record in LINES:
        if record["hf_id"]:
            assert load_model(record["hf_id"].lower(), offline=True).name == record["name"]


def test_names_are_distinct() -> None:
    assert len({n.lower() for n in FACTS.models.names}) == len(FACTS.models.names)


def test_aliases_lead_to_models_of_the_catalog() -> None:
    aliases = json.loads(resources.files("flopwise").joinpath("data/model_aliases.json").read_text(encoding="utf-8"))
    names = set(FACTS.models.names)
    for alias, name in aliases.items():
        assert name in names, f"{alias} leads to {name}, which is not in the catalog"
        assert load_model(alias, offline=True).name == name, alias


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Llama3.1-8B", "Llama-3.1-8B"),
        ("LLAMA 3.1 8b", "Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("Llama-3.3-70B", "Llama-3.3-70B-Instruct"),
        ("Llama-2-7b-hf", "Llama-2-7B"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("gpt_oss_20b", "gpt-oss-20b"),
        ("opt-1.3b", "OPT-1.3b"),
        ("opt-13b", "OPT-13b"),
        ("gpt2", "GPT-2 small"),
        ("bert-base-uncased", "BERT base (uncased)"),
        ("deepseek-r1", "DeepSeek-R1"),
        ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-7B"),
        ("Qwen3-8B-AWQ", "Qwen3-8B"),
        ("unsloth/Qwen3-8B-GGUF", "Qwen3-8B"),
        ("qwen3:8b", "Qwen3-8B"),
        ("Gemma-3-27B", "Gemma-3-27B (text tower)"),
        ("Llama-4-Scout", "Llama-4-Scout (text)"),
        ("sdxl", "SDXL base UNet"),
        ("resnet50", "ResNet-50"),
    ],
)
def test_common_spellings(given: str, name: str) -> None:
    assert load_model(given, offline=True).name == name


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("Lama-3.1-8B")
    assert "Llama-3.1-8B" in caught.value.nearest


@pytest.mark.parametrize("given", ["", "   ", "\0", "llama\0"])
def test_no_name_is_an_error(given: str) -> None:
    with pytest.raises(SpecError, match="a model is needed"):
        load_model(given)


def test_someone_elses_model_of_a_known_name_is_not_ours() -> None:
    with pytest.raises(SpecError, match="offline"):
        load_model("someone/Llama-3.1-8B", offline=True)


def test_rows_say_what_the_listing_shows() -> None:
    rows = {row["name"]: row for row in FACTS.models.rows()}
    assert len(rows) == len(LINES)
    llama = rows["Llama-3.1-70B"]
    assert (llama["layers"], llama["width"], llama["heads"], llama["kv_heads"]) == (80, 8192, 64, 8)
    assert (llama["context"], llama["model_type"], llama["confidence"]) == (131072, "llama", "high")
    assert rows["ResNet-50"]["layers"] is None
    assert rows["ResNet-50"]["parameters"] == 25_557_032


def test_published_figures_of_networks_without_tables() -> None:
    resnet = load_model("ResNet-50")
    assert resnet.published is not None
    # 4.09 GMAC an image, as torchvision's model table has it
    assert resnet.published.forward_flops_per_sample == pytest.approx(2 * 4.09e9, rel=0.005)
    assert load_model("CosmoFlow").published is not None


def test_one_model_parses_its_own_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To parse the whole catalog for one model would cost more than the estimate."""
    parsed: list[int] = []
    loads = json.loads

    def counted(text: str, **how: Any) -> Any:
        parsed.append(len(text))
        return loads(text, **how)

    monkeypatch.setattr(json, "loads", counted)
    for name in ("DeepSeek-R1", "Kimi-K2.5", "Llama-3.1-405B", "MPT-30B"):
        load_model(name)  # with the tables that are read once
        parsed.clear()
        load_model(name)
        assert sum(parsed) < 10_000, (name, parsed)


def test_loading_a_model_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flopwise.facts.models import load_model; load_model('Llama-3.1-8B'); load_model('7B');"
        "print([m for m in ('numpy', 'huggingface_hub', 'torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def own(folder: Path, *lines: object) -> Path:
    """A folder of facts with those lines in its models.jsonl."""
    folder.mkdir(exist_ok=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "models.jsonl").write_text(text, encoding="utf-8")
    return folder


SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def test_a_folder_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own(tmp_path / "facts", {"name": "Our-Model", "config": SMALL}, {"name": "llama-3.1-8b", "config": SMALL})
    assert load_facts(folder).model("our model").stacks[0].num_layers == 2
    assert load_facts(folder).model("Llama-3.1-8B").stacks[0].width == 64
    assert "Our-Model" in load_facts(folder).models.names
    assert load_model("Llama-3.1-8B").stacks[0].width == 4096
    monkeypatch.setenv("FLOPWISE_FACTS", str(folder))
    assert load_facts().model("Our-Model").stacks[0].width == 64


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", "line 2: an object with a 'name'"),
        ({"config": SMALL}, "'name' is needed"),
        ({"name": "x"}, "'config' .* or 'published'"),
        ({"name": "x", "config": []}, "'config' is"),
        ({"name": "x", "config": SMALL, "colour": "red"}, "unknown key 'colour'"),
        ({"name": "x", "config": SMALL, "parameters": -1}, "'parameters' is '-1'"),
        ({"name": "x", "config": SMALL, "parameters": True}, "'parameters' is 'True'"),
        ({"name": "x", "published": {"parameters": -3}}, "published: 'parameters'"),
        ({"name": "x", "published": {"forward_flops_per_sample": float("nan")}}, "forward_flops_per_sample"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, complaint: str) -> None:
    folder = own(tmp_path / "bad", {"name": "fine", "config": SMALL}, line)
    with pytest.raises(SpecError, match=complaint):
        load_facts(folder).model("Llama-3.1-8B")


def test_a_binary_catalog_is_refused(tmp_path: Path) -> None:
    folder = own(tmp_path / "binary")
    (folder / "models.jsonl").write_bytes(bytes(range(256)))
    with pytest.raises(SpecError, match="cannot be read as text"):
        load_facts(folder).model("Llama-3.1-8B")


def test_a_name_to_the_letter_means_the_record_that_any_spelling_of_it_finds() -> None:
    index = catalog.SHIPPED._index
    for record in index.records:
        assert catalog._shipped_record(record["name"]) == record == index.find(record["name"])
    assert catalog._shipped_record('GPT-2"') is None
