"""Trains as its files say: training_arguments.json."""

from __future__ import annotations

import sys

from transformers import HfArgumentParser, TrainingArguments


def main() -> None:
    """Read the arguments."""
    HfArgumentParser([TrainingArguments]).parse_json_file(sys.argv[1])


if __name__ == "__main__":
    main()
