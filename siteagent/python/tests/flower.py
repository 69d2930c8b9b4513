"""What the tests of girassol.flower share: which flwr there is, apps, and a
runner beside a stand-in agent."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import unittest
from typing import Any
from unittest import mock

from .rig import PATIENCE, SRC, AgentCase, script

from girassol import standin
from girassol.flower import _command, _runner

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "examples", "flower")
REAL = importlib.util.find_spec("flwr") is not None
NUMPY = importlib.util.find_spec("numpy") is not None
PATHS = [SRC, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))] if REAL else [SRC, os.path.join(HERE, "flwr_standin")]

if NUMPY:
    if REAL:
        import importlib.metadata

        print(f"tests of girassol flower: with flwr {importlib.metadata.version('flwr')}", file=sys.stderr)
    else:
        print("tests of girassol flower: flwr is not installed, a stand-in for it is used (tests/flwr_standin)", file=sys.stderr)

PYPROJECT = """
[project]
name = "app"
version = "1"

[tool.flwr.app]
publisher = "x"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
amount = 0.5
name = "n"
nested.key = 1
"""

# What it does with a call is said by the message's config.
CLIENT = """
import os, signal, sys, time
import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

def count(message, context, call_next):
    n = int(context.state["calls"]["n"]) + 1 if "calls" in context.state else 1
    context.state["calls"] = MetricRecord({"n": n})
    return call_next(message, context)

app = ClientApp(mods=[count])

@app.lifespan()
def lifespan(context):
    os.environ["ALIVE"] = "yes"
    yield
    del os.environ["ALIVE"]

@app.train()
def train(message, context):
    config, meta = message.content["config"], message.metadata
    mode = config.get("mode", "")
    arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
    if mode == "raise":
        raise RuntimeError("the data set is not there")
    if mode == "sys.exit":
        sys.exit(3)
    if mode == "os._exit":
        os._exit(5)
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "crash":
        os.abort()
    if mode == "hang":
        print("hanging", flush=True)
        with open(config["pid"], "w") as f:
            f.write(str(os.getpid()))
        time.sleep(600)
    if mode == "partition":
        context.node_config["partition-id"]
    if mode == "key":
        config["temperature"]
    if mode == "none":
        return None
    if mode == "error":
        return Message(Error(2, "no memory"), reply_to=message)
    out = {n: a + np.asarray(context.run_config["amount"], a.dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    if mode == "renamed":
        out["new"] = out.pop("layer.bias")
    if mode == "missing":
        del out["scale"]
    if mode == "shape":
        out["layer.bias"] = out["layer.bias"].reshape(2, 2)
    if mode == "nan arrays":
        out["layer.bias"][0] = np.nan
    if mode == "float counter":
        out["bn.num_batches_tracked"] = out["bn.num_batches_tracked"] * 1.0
    if mode == "complex":
        out["layer.bias"] = out["layer.bias"] * 1j
    metrics = {"num-examples": 7, "train_loss": 2.5, "calls": context.state["calls"]["n"], "list": [1, 2]}
    metrics |= {"seen.round": config["server-round"], "seen.group": int(meta.group_id), "seen.alive": int(os.environ["ALIVE"] == "yes")}
    metrics |= {"seen.ids": int(meta.run_id == context.run_id and meta.dst_node_id == context.node_id > 1 and meta.src_node_id == 1)}
    metrics |= {"pid": os.getpid(), "seen.config": float(config.get("lr", 0.0)), "seen.mu": float(config.get("proximal-mu", 0.0))}
    if mode.startswith("examples "):
        del metrics["num-examples"]
        if mode != "examples none":
            metrics["num-examples"] = float(mode.split()[1])
    records = {"arrays": ArrayRecord({n: Array(np.asarray(a)) for n, a in out.items()}), "metrics": MetricRecord(metrics)}
    if mode == "two records":
        records["more"] = MetricRecord({})
    if mode == "no arrays":
        del records["arrays"]
    return Message(content=RecordDict(records), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    config = message.content["config"]
    name = config.get("metric", "eval_loss")
    metrics = MetricRecord({name: 1.5, "eval_acc": 0.75, "num-examples": config.get("examples", 5)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
"""
SERVER = """
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import numpy as np

app = ServerApp()

class Proximal(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["proximal-mu"] = 0.25
        return super().configure_train(server_round, arrays, config, grid)

def central(number, arrays):
    raise RuntimeError("the server's test set is not here")

@app.main()
def main(grid, context):
    arrays = ArrayRecord({"w2": Array(np.ones((2, 3), np.float32)), "w1": Array(np.zeros((), np.float32))})
    config = ConfigRecord({"lr": context.run_config["amount"]})
    Proximal().start(grid=grid, initial_arrays=arrays, train_config=config, evaluate_fn=central)
"""
LEGACY = """
import numpy as np
from flwr.client import ClientApp, NumPyClient

class Ones(NumPyClient):
    def get_parameters(self, config):
        return [np.zeros((2, 3), np.float32), np.zeros(4, np.float32), np.float32(0)] + [np.zeros(1, np.float32)] * 9

    def fit(self, parameters, config):
        shapes = [p.shape for p in parameters]
        out = [p + 1 for p in parameters]
        if config.get("mode") == "short":
            out = out[:-1]
        if config.get("mode") == "order":
            out = out[::-1]
        n = {"zero": 0, "negative": -1}.get(config.get("mode"), 3)
        return out, n, {"first": shapes[0][0], "loss": 0.5, "text": "left out", "truth": True}

    def evaluate(self, parameters, config):
        return float(sum(p.sum() for p in parameters)), 4, {"accuracy": 0.5}

app = ClientApp(client_fn=lambda context: Ones().to_client())
"""


def write_app(folder: str, client: str = CLIENT, server: str = SERVER, pyproject: str = PYPROJECT) -> str:
    os.makedirs(os.path.join(folder, "app"))
    for name, text in (("pyproject.toml", pyproject), ("app/__init__.py", ""), ("app/client.py", client), ("app/server.py", server)):
        with open(os.path.join(folder, name), "w") as f:
            f.write(script(text))
    return folder


@unittest.skipUnless(NUMPY, "Flower apps need numpy")
class FlowerCase(AgentCase):
    """A stand-in agent, an app, and a runner of it in a thread."""

    client = CLIENT

    def setUp(self) -> None:
        super().setUp()
        environment = {"PYTHONPATH": os.pathsep.join(PATHS), "GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)
        patched = mock.patch.object(_runner, "_PAUSE", 0.0)
        patched.start()
        self.addCleanup(patched.stop)
        self.app = write_app(os.path.join(self.dir, "app"), self.client)
        self.state = os.path.join(self.work, "flower")
        self.runner: _runner.Runner | None = None
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.addCleanup(self.stop)

    def options(self, *arguments: str, server: bool = False) -> _runner.Options:
        """Of the command line."""
        seen: list[_runner.Options] = []
        with mock.patch.object(_command, "Runner", lambda options: seen.append(options) or mock.Mock()):
            more = [] if server else ["--no-serverapp"]
            status = _command.main(["--app", self.app, *more, *arguments])
        self.assertEqual(status, 0)
        return seen[0]

    def run_app(self, *arguments: str, server: bool = False) -> None:
        """Start the runner."""
        runner = self.runner = _runner.Runner(self.options(*arguments, server=server))

        def run() -> None:
            try:
                runner.run()
            except BaseException as e:
                self.error = e

        self.error = None
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End it, and raise what ended it before."""
        if self.runner is not None and self.thread is not None:
            session = getattr(self.runner, "_session", None)
            if session is not None:
                session.stop()
            self.thread.join(PATIENCE)
            self.assertFalse(self.thread.is_alive(), "the runner does not end")
        self.thread = self.runner = None

    def wait(self, task: standin.Task) -> standin.Task:
        """Until a task is over."""
        self.agent.wait(lambda _: task.done.is_set() or self.error is not None, 2 * PATIENCE)
        if not task.done.is_set():
            self.fail(f"task {task.id} is not over: {self.error}")
        return task

    def do(self, kind: str = "train", seconds: float = 120.0, **config: Any) -> standin.Task:
        """A task from begin to end. ``config`` gets into the message's."""
        texts = {name: f'"{v}"' if isinstance(v, str) else str(v) for name, v in config.items()}
        return self.wait(self.give(kind, seconds, config=texts))

    def result(self, task: standin.Task) -> dict[str, Any]:
        self.assertIsNone(task.failure)
        assert task.result is not None
        return task.result
