"""The seeded faults can be applied to today's tree; `make mutants` runs them."""

from __future__ import annotations

from pathlib import Path

import run

from each import each

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "flopwise"
SEEDS = list(run.seeds())


@each("seed", SEEDS, label=lambda seed: seed.label)
def test_a_seed_changes_one_place_and_names_tests_that_exist(seed: run.Seed) -> None:
    changed = run.seeded(seed, (PACKAGE / seed.file).read_text(encoding="utf-8"))
    if seed.file.endswith(".py"):  # of pages a browser says whether they run
        compile(changed, seed.file, "exec")
    for test in seed.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_names_of_seeds_are_unique() -> None:
    labels = [seed.label for seed in SEEDS]
    assert len(set(labels)) == len(labels)
