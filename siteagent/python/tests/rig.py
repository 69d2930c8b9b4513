"""What the tests share: stand-ins, models, and scripts in processes."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Callable
from typing import Any

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
if SRC not in sys.path:
    sys.path.insert(0, SRC)

import girassol  # noqa: E402
from girassol import Tensor, safetensors, standin  # noqa: E402

PATIENCE = 60.0


def raw(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file as a stranger may write it."""
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def model(**more: Tensor) -> dict[str, Tensor]:
    """A small model with what is delicate: bf16, 0-d, int64, a buffer."""
    return {
        "layer.weight": Tensor.of("F32", (4, 8), [i / 7 for i in range(32)]),
        "layer.bias": Tensor.of("F32", (4,), [0.5, -0.5, 0.25, 0.0]),
        "half": Tensor.of("BF16", (2,), [1.0, 3.0]),
        "scale": Tensor.of("F32", (), [2.0]),
        "bn.running_mean": Tensor.of("F32", (3,), [0.0, 1.0, 2.0]),
        "bn.num_batches_tracked": Tensor.of("I64", (), [(1 << 62) + 1]),
        **more,
    }


def add(tensors: dict[str, Tensor], amount: float) -> dict[str, Tensor]:
    """The floats moved by an amount, as a training would."""
    return {
        n: Tensor.of(t.dtype, t.shape, [v + amount for v in t.values()]) if t.spec.is_float else t
        for n, t in tensors.items()
    }


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        # Short, for a Unix socket's path.
        self.dir = tempfile.mkdtemp(prefix="g", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.work = os.path.join(self.dir, "work")
        os.mkdir(self.work)
        self.socket = os.path.join(self.dir, "s")

    def path(self, name: str) -> str:
        return os.path.join(self.work, name)

    def write_model(self, tensors: dict[str, Any] | None = None) -> str:
        path = self.path("model.safetensors")
        safetensors.save(path, model() if tensors is None else tensors)
        return path


class AgentCase(Case):
    """A test with a stand-in agent."""

    def setUp(self) -> None:
        super().setUp()
        self.agent = standin.Agent(self.socket, self.work)
        self.agent.__enter__()
        self.addCleanup(self.agent.__exit__)
        self.tasks = 0

    def session(self, **options: Any) -> girassol.Session:
        return girassol.Session(socket_path=self.socket, work_dir=self.work, **options)

    def task(self, kind: str = "train", seconds: float = 30.0, **more: Any) -> standin.Task:
        self.tasks += 1
        if not os.path.exists(self.path("model.safetensors")):
            self.write_model()
        if kind == "train":
            more.setdefault("resultPath", self.path(f"result-{self.tasks}.safetensors"))
        return standin.Task(f"t{self.tasks}", kind, self.tasks, self.path("model.safetensors"), seconds, **more)

    def give(self, kind: str = "train", seconds: float = 30.0, **more: Any) -> standin.Task:
        return self.agent.give(self.task(kind, seconds, **more))

    def run_one(self, body: Callable[[girassol.Round], object], **options: Any) -> None:
        """A session over one round."""
        with self.session(**options) as session:
            for round in session:
                body(round)
                session.stop()


def contents(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def script(text: str) -> str:
    return textwrap.dedent(text).lstrip()


def start(path: str, *args: str, env: dict[str, str] | None = None, python: str = sys.executable) -> subprocess.Popen[str]:
    """Run Python with this package, its output kept."""
    return subprocess.Popen(
        [python, path, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC, "PYTHONUNBUFFERED": "1", **(env or {})},
    )
