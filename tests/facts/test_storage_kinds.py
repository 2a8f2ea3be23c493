"""Rows of storage: names apart, rates plausible, sources there; a folder of your own lies over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwise.errors import SpecError, UnknownNameError, fold
from flopwise.facts.catalog import load_facts
from flopwise.facts.storage import Storage
from flopwise.training.goodput import DEFAULT_RELIABILITY
from named import FACTS


@pytest.mark.parametrize("row", FACTS.storage_kinds.values(), ids=lambda row: row.name)
def test_rows_are_plausible(row: Storage) -> None:
    assert 5e7 <= row.read_bytes_per_s <= 2e11
    assert row.write_bytes_per_s is None or row.write_bytes_per_s <= row.read_bytes_per_s
    assert row.source
    assert row.date
    assert FACTS.storage(row.name.upper()) is row


def test_no_spelling_stands_for_two_kinds() -> None:
    rows = FACTS.storage_kinds.values()
    spellings = [s for row in rows for s in {fold(n) for n in (row.name, *row.aliases)} if s]
    assert len(spellings) == len(set(spellings))


def test_what_people_say() -> None:
    assert FACTS.storage("NFS").read_bytes_per_s == pytest.approx(3e9)
    assert FACTS.storage("nvme").name == "nvme-gen4"
    with pytest.raises(UnknownNameError, match=r"nearest: lustre"):
        FACTS.storage("lustr")
    with pytest.raises(UnknownNameError, match="Allowed: nfs-tcp"):
        FACTS.storage("")


def test_own_rows(tmp_path: Path) -> None:
    file = tmp_path / "storage.csv"
    file.write_text(
        "name,read_bytes_per_s,source,date\nours,40GB/s,measured,2026-11-01\nnfs-tcp,5GB/s,ours,2026-11-01\n"
    )
    assert load_facts(tmp_path).storage("ours").read_bytes_per_s == 40e9
    assert FACTS.storage("nfs").read_bytes_per_s == 3e9
    assert load_facts(tmp_path).storage("nfs-tcp").read_bytes_per_s == 5e9
    file.write_text("name,read_bytes_per_s,source,date\nours,-1,measured,2026-11-01\n")
    with pytest.raises(SpecError, match=r"row 2, column read_bytes_per_s"):
        load_facts(tmp_path).storage("ours")


def test_the_default_of_checkpoints_is_a_parallel_file_system() -> None:
    row = FACTS.storage("parallel-fs")
    assert row.total_write_bytes_per_s == DEFAULT_RELIABILITY.write_bytes_per_s
    assert row.write_bytes_per_s == 8 * DEFAULT_RELIABILITY.write_bytes_per_s_per_gpu  # of a node of eight
    assert all(
        (kind.total_write_bytes_per_s or 1e30) >= (kind.write_bytes_per_s or 0) for kind in FACTS.storage_kinds.values()
    )


def test_limits_of_the_whole_store_on_reads() -> None:
    """Azure scalability targets: 50 Gbit/s out of an account; Amazon EFS quotas: 60 GiB/s of a file system."""
    assert FACTS.storage("azure-blob").total_read_bytes_per_s == 50e9 / 8
    assert FACTS.storage("efs").total_read_bytes_per_s == pytest.approx(60 * 2**30, rel=1e-3)
    assert all((kind.total_read_bytes_per_s or 1e30) >= kind.read_bytes_per_s for kind in FACTS.storage_kinds.values())
