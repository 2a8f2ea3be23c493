"""Has vLLM's own parsers take commands, JSON on standard input; run with the Python that has vLLM."""

import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.run_batch import make_arg_parser as make_batch_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

for words in json.load(sys.stdin):
    make = make_batch_parser if words[1] == "run-batch" else make_arg_parser
    make(FlexibleArgumentParser()).parse_args(words[2:])
sys.stdout.write("taken")
