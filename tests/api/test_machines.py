"""What a question says of its machines, and what is told when they do not come out even."""

from pathlib import Path
from typing import Any

import pytest

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from named import train_answer


@pytest.mark.parametrize(("gpus", "per_node", "rest"), [(64, 7, 1), (12, 8, 4), (64, 8, 0), (7, 8, 0), (1, 1, 0)])
def test_a_node_that_is_not_full_is_told(gpus: int, per_node: int, rest: int) -> None:
    built = MachineSpec(gpu="h100-sxm", gpus_per_node=per_node).cluster(gpus, load_facts())
    told = [one for one in built.assumptions if "do not fill nodes" in one]
    assert bool(told) == bool(rest)
    assert all(f"nodes of {per_node}: the last node has {rest} in use" in one for one in told)


def test_a_power_limit_is_that_of_a_row_with_less_power(tmp_path: Path) -> None:
    (tmp_path / "accelerators.csv").write_text("name,tdp_w,source,date\nH100-SXM-80,500,our cluster,2026-10-01\n")
    asked: dict[str, Any] = {"gpu": "H100-SXM-80", "gpus": 8, "fsdp": True, "tokens": 1e9}
    plain = train_answer("Llama-3.1-8B", **asked)
    limited = train_answer("Llama-3.1-8B", **asked, power_limit=500.0)
    own = train_answer("Llama-3.1-8B", **asked, facts=tmp_path)
    whole = train_answer("Llama-3.1-8B", **asked, power_limit=700.0)
    assert limited.estimate.step_s == own.estimate.step_s > plain.estimate.step_s == whole.estimate.step_s
    ours, theirs = limited.estimate.run, plain.estimate.run
    assert ours is not None
    assert theirs is not None
    assert ours.energy_joules is not None
    assert theirs.energy_joules is not None
    assert ours.energy_joules < theirs.energy_joules
    assert any("power limit of 500 W" in told for told in limited.assumptions)
    for watts in (10.0, 701.0, "0.8kW"):
        with pytest.raises(SpecError, match="allowed: 175 to 700 W"):
            train_answer("Llama-3.1-8B", **asked, power_limit=watts)
    with pytest.raises(SpecError, match="power limit: nan is not finite"):
        train_answer("Llama-3.1-8B", **asked, power_limit=float("nan"))


def test_software_of_before_flash_attention_writes_its_scores() -> None:
    """Narayanan et al. 2021 (arXiv:2104.04473) section 5.1: GPT-3 on 1,024 A100, 300 billion tokens: 34 days."""
    asked: dict[str, Any] = {
        "gpu": "A100-SXM-80",
        "gpus": 1024,
        "tp": 8,
        "pp": 8,
        "recompute": "full",
        "global_batch": 1536,
    }
    found = train_answer("GPT-3-175B", **asked, stack="megatron-2021")
    assert found.estimate.job.recipe.attention == "eager"
    assert 300e9 / found.estimate.tokens_per_s / 86400 == pytest.approx(34, rel=0.1)
    told = train_answer("GPT-3-175B", **asked, stack="megatron-2021", attention="flash")
    assert told.estimate.step_s < found.estimate.step_s
    assert train_answer("GPT-3-175B", **asked, stack="megatron-te").estimate.job.recipe.attention == "flash"


@pytest.mark.parametrize(("per_node", "inside"), [(1, False), (2, True)])
def test_links_inside_a_node_are_of_no_account_where_it_has_one_device(per_node: int, inside: bool) -> None:
    found = train_answer("Llama-3.2-1B", gpu="rtx-4090", gpus=4, seq=1024, gpus_per_node=per_node)
    assert any("devices of a node pass through the host's memory" in note for note in found.assumptions) == inside
    settings = dict(found.settings)
    assert settings["accelerators"].endswith(f"{per_node} per node" + ", pcie-host inside" * inside)
