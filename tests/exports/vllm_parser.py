"""Has vLLM's own parsers take commands, a JSON list on standard input; run with the Python that has vLLM.

Prints the flags of its server, and for each command what was wrong with it, null where it was taken. A folder as its
argument gets a tiny model, since the libraries that make it are loaded.
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.run_batch import make_arg_parser as make_batch_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

serve = make_arg_parser(FlexibleArgumentParser())  # parsers take seconds to make, and parse any number of commands
run_batch = make_batch_parser(FlexibleArgumentParser())
flags: list[tuple[str, str, list[str]]] = []
for action in serve._actions:
    value = "none" if action.nargs == 0 else {None: "one", "?": "optional"}.get(action.nargs, "many")
    choices = sorted({str(choice) for choice in action.choices or ()})
    flags += [(flag, value, choices) for flag in action.option_strings]
complaints: list[str | None] = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            (run_batch if words[1] == "run-batch" else serve).parse_args(words[2:])
            complaints.append(None)
        except SystemExit:
            complaints.append(said.getvalue())
if len(sys.argv) > 1:
    runpy.run_path(str(Path(__file__).with_name("tiny_llama.py")), run_name="__main__")
sys.stdout.write("\n" + json.dumps({"flags": flags, "complaints": complaints}))
