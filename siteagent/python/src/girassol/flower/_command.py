"""python -m girassol flower: arguments of the command, and its exit status."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from ..check import Check
from ..errors import GirassolError
from ..session import ENV_WORK_DIR
from . import _project
from ._errors import FlowerError
from ._runner import Options, Runner

__all__ = ["add_to", "main", "run"]

_DESCRIPTION = """
Run the ClientApp of a Flower app as the trainer of a site. The agent starts it
(agent ... -- python3 -m girassol flower --app DIR); the app is not changed and
may still be run by Flower. Needs flwr >= 1.21 beside the app's own packages.
"""


def add_to(commands: Any) -> None:
    """Make this a command of ``python -m girassol``."""
    _arguments(commands.add_parser("flower", help="run a Flower app's ClientApp as a site's trainer", description=_DESCRIPTION))


def main(arguments: Sequence[str] | None = None) -> int:
    """The script girassol-flower."""
    parser = argparse.ArgumentParser(prog="girassol-flower", description=_DESCRIPTION)
    _arguments(parser)
    return run(parser.parse_args(arguments))


def _arguments(parser: argparse.ArgumentParser) -> None:
    pairs: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "metavar": "K=V"}
    add = parser.add_argument
    add("--app", default=".", metavar="DIR", help="folder with the app's pyproject.toml (default: this one)")
    add("--run-config", **pairs, help="override a value of [tool.flwr.app.config]; text in quotes, as for flwr run; or a TOML file")
    add("--node-config", **pairs, help="a value of ctx.node_config, such as partition-id=0 num-partitions=2; or a TOML file")
    add("--train-config", **pairs, help="a value of the train message's config, besides server-round and what the ServerApp sends")
    add("--evaluate-config", **pairs, help="the same of the evaluate message's")
    add("--initial", default="", metavar="WHAT", help="first weights: package.module:Net (a torch module, a function or class that "
        "gives one, or arrays by name) or a .safetensors or .npz file; default: what the ServerApp starts with, or get_parameters")
    add("--no-serverapp", action="store_true", help="do not run the ServerApp up to its first messages, to hear first weights and config")
    add("--state", default="", metavar="DIR", help="where ctx.state is kept; one for each site and federation "
        f"(default ${ENV_WORK_DIR}/flower)")
    add("--damaged-state", choices=("refuse", "anew"), default="refuse", help="what to do where the file of ctx.state is damaged "
        "(default %(default)s)")
    add("--weighted-by", default="num-examples", metavar="NAME", help="the metric that is the update's weight (default %(default)s)")
    add("--loss", default="", metavar="NAME", help="the metric that is the loss (default: loss, eval_loss, train_loss and the like)")
    add("--fresh", action="store_true", help="a new process for each call, for apps that do not give memory back")
    seconds: dict[str, Any] = {"type": float, "metavar": "S"}
    add("--late-seconds", **seconds, default=15.0, help="how long after the stop time a call is waited for (default %(default)s)")
    add("--drain-seconds", **seconds, default=8.0, help="the same after SIGTERM; below the agent's 10 s (default %(default)s)")
    add("--start-seconds", **seconds, default=600.0, help="how long the app may take to load (default %(default)s)")
    add("--check", action="store_true", help="try the app out against a stand-in of the agent, for two rounds, an evaluation and a SIGTERM")


def run(given: argparse.Namespace) -> int:
    """0 after an ordinary end; 1 where the app cannot be run, with the reason on stderr."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="girassol flower: %(message)s", stream=sys.stderr)
    try:
        options = _options(given)
        if given.check:
            return _check(given, options)
        Runner(options).run()
    except GirassolError as e:
        print(f"girassol flower: {e}", file=sys.stderr)
        return 1
    return 0


def _options(given: argparse.Namespace) -> Options:
    project = _project.read(given.app)
    initial = given.initial
    if initial.endswith((".safetensors", ".npz")):
        initial = os.path.abspath(initial)
        if not os.path.isfile(initial):
            raise FlowerError(f"--initial {given.initial}: there is no such file")
    elif initial and ":" not in initial:
        raise FlowerError(f"--initial {initial}: want package.module:name, or a .safetensors or .npz file")
    for name in ("late_seconds", "drain_seconds", "start_seconds"):
        if not 0 < getattr(given, name) < 1e6:
            raise FlowerError(f"--{name.replace('_', '-')} {getattr(given, name)}: want seconds above 0")
    project = project._replace(run_config=_project.overridden(project.run_config, _project.parse_pairs("--run-config", given.run_config)))
    node, train, evaluate = (_project.parse_pairs(f"--{n}-config", getattr(given, f"{n}_config")) for n in ("node", "train", "evaluate"))
    work = os.environ.get(ENV_WORK_DIR, "")
    state = given.state or (os.path.join(work, "flower") if work else "")
    if not state and not given.check:
        raise FlowerError(
            f"{ENV_WORK_DIR} is not set: let the agent start this command (agent ... -- python3 -m girassol flower ...), "
            "or try the app out with --check"
        )
    return Options(
        project=project, node_config=node, train_config=train, evaluate_config=evaluate,
        initial=initial, use_server_app=not given.no_serverapp,
        state_folder=os.path.abspath(state) if state else "", damaged_state=given.damaged_state,
        weighted_by=given.weighted_by, loss=given.loss, fresh=given.fresh,
        late_seconds=given.late_seconds, drain_seconds=given.drain_seconds, start_seconds=given.start_seconds,
    )  # fmt: skip


def _check(given: argparse.Namespace, options: Options) -> int:
    """The same command under a stand-in of the agent, with a memory of its own."""
    with tempfile.TemporaryDirectory(prefix="girassol-flower-") as folder:
        command = [sys.executable, "-m", "girassol", "flower", "--state", folder]
        for name, value in vars(given).items():
            flag = "--" + name.replace("_", "-")
            if name in ("command", "check", "state") or value in ("", [], False):
                continue
            if value is True:
                command.append(flag)
            else:
                for item in value if isinstance(value, list) else [value]:
                    command.append(f"{flag}={item}")
        return 0 if Check(command, start_seconds=options.start_seconds).run() else 1
