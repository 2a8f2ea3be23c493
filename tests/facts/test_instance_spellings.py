"""Instances are understood as people and vendors write them, wherever one is named."""

from __future__ import annotations

import itertools

import pytest

from flopwise.api.facts import instances
from flopwise.errors import UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import names_instance
from flopwise.fleet.spec import Quota


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("NC4as_T4_v3", "Standard_NC4as_T4_v3"),
        ("nc6s v3", "Standard_NC6s_v3"),
        ("standard-nc6s-v3", "Standard_NC6s_v3"),
        ("n1-standard-8 + T4", "n1-standard-8+1xT4"),
        ("N1-standard-4+1xT4", "n1-standard-4+1xT4"),
        ("n1-standard-8 + V100", "n1-standard-8+1xV100-SXM2-16"),
        ("n1-standard-16 + 2 x NVIDIA T4", "n1-standard-16+2xT4"),
        ("n1-standard-16 + 2 T4", "n1-standard-16+2xT4"),
        ("G5.2XLARGE", "g5.2xlarge"),
    ],
)
def test_short_and_vendor_spellings(asked: str, meant: str) -> None:
    assert {o.instance for o in instances(asked)} == {meant}


def test_no_name_of_the_catalog_means_two_instances() -> None:
    names = {o.instance for o in load_facts(None).offers}
    assert not [(a, b) for a, b in itertools.permutations(names, 2) if names_instance(a, b) and a.lower() != b.lower()]


@pytest.mark.parametrize("asked", ["n1-standard-8", "n1-standard-8 + 2 T4", "g5.9xlarge", "NC4as_T4", "n1-standard-8+"])
def test_what_names_no_machine_is_answered_with_the_nearest(asked: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        instances(asked)
    assert "nearest: " in str(caught.value)


def test_quotas_and_patterns_know_the_short_names() -> None:
    assert Quota(most=1, instance="ND*_v5").counts("azure", "Standard_ND96isr_H100_v5")
    assert not Quota(most=1, instance="ND*_v5").counts("azure", "Standard_NC40ads_H100_v5")
    assert Quota(most=1, provider="az*", instance="nc6s_v3").counts("azure", "Standard_NC6s_v3")
    assert not Quota(most=1, provider="aws").counts("azure", "Standard_NC6s_v3")
