"""Has vLLM's own parsers take commands, JSON on standard input; run with the Python that has vLLM.

Prints for each command what was wrong with it, null where it was taken.
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.run_batch import make_arg_parser as make_batch_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

complaints: list[str | None] = []
for words in json.load(sys.stdin):
    make = make_batch_parser if words[1] == "run-batch" else make_arg_parser
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            make(FlexibleArgumentParser()).parse_args(words[2:])
            complaints.append(None)
        except SystemExit:
            complaints.append(said.getvalue())
sys.stdout.write("\n" + json.dumps(complaints))
