"""Seed wrong formulas, one at a time, and list those that no test notices: `make mutants`.

A seed is a table in a file of `seeds/`: the module, the text that stands there once, the wrong text, and the tests
that must fail on it. A seed whose change alters no answer says why in `equivalent`, and has to survive.

    python tests/mutants/run.py [PATTERN...] [--jobs N]     seeds whose area or name contains any PATTERN
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parent / "seeds"
NO_TEST_FAILED, A_TEST_FAILED = 0, 1
"""Exit codes of pytest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One wrong formula; `file` is relative to the package, `tests` to the root."""

    area: str
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def label(self) -> str:
        """Area and name, as reports show them."""
        return f"{self.area}: {self.name}"


def seeds() -> Iterator[Seed]:
    """All seeds, by area."""
    for path in sorted(SEEDS.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["seed"]:
            yield Seed(area=path.stem, **{**row, "tests": tuple(row["tests"])})


def seeded(seed: Seed, source: str) -> str:
    """The source of `seed.file` with the fault in it.

    Raises:
        ValueError: the text to change does not stand there exactly once.
    """
    if (count := source.count(seed.find)) != 1:
        raise ValueError(f"{seed.label}: {seed.find!r} stands {count} times in {seed.file}")
    return source.replace(seed.find, seed.replace)


def failing_tests(seed: Seed, tree: Path) -> tuple[int, str]:
    """Exit code and output of the seed's tests on the package in `tree` with the fault in it."""
    path = tree / "flopwise" / seed.file
    source = path.read_text(encoding="utf-8")
    path.write_text(seeded(seed, source), encoding="utf-8")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *seed.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    finally:
        path.write_text(source, encoding="utf-8")
    return ended.returncode, ended.stdout + ended.stderr


def verdict(seed: Seed, code: int) -> str | None:
    """What is wrong with how the tests ended on `seed`, or None."""
    if code not in (NO_TEST_FAILED, A_TEST_FAILED):
        return f"pytest ended with {code}"
    if seed.equivalent:
        return None if code == NO_TEST_FAILED else "listed as equivalent, but a test fails"
    return "SURVIVED" if code == NO_TEST_FAILED else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; 1 where any survives."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="part of an area or name; all seeds without any")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = [s for s in seeds() if not options.patterns or any(p in s.label for p in options.patterns)]
    if not chosen:
        print("no seed has such a name")
        return 2
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flopwise-mutants-") as scratch:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(options.jobs):
            shutil.copytree(
                ROOT / "src", tree := Path(scratch) / str(number), ignore=shutil.ignore_patterns("__pycache__")
            )
            # a seed may keep the size and the second of its file: byte code is held to the source itself
            compileall.compile_dir(tree, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
            trees.put(tree)
        printing = threading.Lock()

        def judged(seed: Seed) -> bool:
            tree = trees.get()
            try:
                code, output = failing_tests(seed, tree)
            finally:
                trees.put(tree)
            fault = verdict(seed, code)
            with printing:
                ending = fault or ("equivalent" if seed.equivalent else "killed")
                print(f"{ending:12} {seed.label}", flush=True)
                if fault and fault != "SURVIVED":
                    print(output[-1500:])
            return fault is None

        with ThreadPoolExecutor(options.jobs) as pool:
            good = list(pool.map(judged, chosen))
    equivalent = sum(bool(s.equivalent) for s in chosen)
    print(
        f"{len(chosen)} seeds: {sum(good) - equivalent} killed, {equivalent} equivalent, {good.count(False)} survived"
        f" or broken, in {time.perf_counter() - started:.0f} s"
    )
    for seed in chosen:
        if seed.equivalent:
            print(f"equivalent: {seed.label}: {seed.equivalent}")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
