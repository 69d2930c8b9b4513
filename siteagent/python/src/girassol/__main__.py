"""python -m girassol check SCRIPT: tries a script out, without a federation.
python -m girassol flower --app DIR: runs a Flower app's ClientApp in one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .check import Check
from .flower import _command as flower


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m girassol", description="Girassol's trainer SDK.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="run a script for two rounds against a stand-in agent and say what would go wrong",
        description="Run a script for two rounds, an evaluation and a SIGTERM in mid-round against a stand-in of the "
        "site's agent, and say what would go wrong in a federation. The status is 1 if something would.",
    )
    check.add_argument("--model", metavar="FILE", help="safetensors file to begin with, for scripts that give no first weights")
    check.add_argument("--steps", type=int, default=4, metavar="N", help="steps of the first round (default %(default)s)")
    check.add_argument("--seconds", type=float, default=60.0, metavar="S", help="length of a round (default %(default)s)")
    check.add_argument(
        "--start-seconds", type=float, default=180.0, metavar="S", help="time until the script asks for work (default %(default)s)"
    )
    check.add_argument(
        "--data", type=int, default=0, metavar="N", help="as in a federation that counts the samples of a corpus of N (spec.data)"
    )
    check.add_argument("script")
    check.add_argument("arguments", nargs=argparse.REMAINDER, help="handed to the script")
    flower.add_to(commands)
    given = parser.parse_args(arguments)
    if given.command == "flower":
        return flower.run(given)
    command = [sys.executable, given.script, *given.arguments]
    run = Check(command, model=given.model, steps=given.steps, seconds=given.seconds, start_seconds=given.start_seconds, data=given.data)
    return 0 if run.run() else 1


if __name__ == "__main__":
    sys.exit(main())
