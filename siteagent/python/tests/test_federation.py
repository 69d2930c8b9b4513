"""Two sites of this package's trainers in a real federation: coordinator and
agents as processes, where a Go toolchain is present."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

from .rig import SRC, Case, script
from .test_agent import REPOSITORY

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

PATIENCE = 90.0

CONFIG = """
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec:
  sites: [{name: porto}, {name: lisboa}]
  energy: {policy: Ignore}
  rounds: {trainSeconds: 2, collectSeconds: 10, evaluateEvery: 2}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: porto}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: lisboa}
"""

# Linear regression; the sites see different data and there is one truth.
TORCH = """
    import os, sys, time
    import torch
    import girassol

    torch.set_num_threads(1)
    name, folder = sys.argv[1:]
    torch.manual_seed(len(name))
    x = torch.randn(256, 8)
    y = x @ torch.arange(8.0) + 1
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(train):
        model.train(train)
        return ((model(x).squeeze(1) - y) ** 2).mean()

    def evaluate(round):
        model.load_state_dict(round.state_dict())
        with torch.no_grad():
            return float(loss_of(False))

    with girassol.Session(seed=model, evaluate=evaluate) as session:
        for round in session:
            model.load_state_dict(round.state_dict())
            while True:
                loss = loss_of(True)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if round.steps == 3:
                    with open(f"{folder}/{name}.pid", "w") as f:
                        f.write(str(os.getpid()))
                time.sleep(0.02)
                if round.step(loss, samples=len(x)):
                    break
            round.submit(model.state_dict())
            with open(f"{folder}/{name}.log", "a") as f:
                f.write(f"{round.number} {round.steps} {session.stopping}\\n")
"""
PLAIN = """
    import os, sys, time
    from girassol import Session, Tensor

    name, folder = sys.argv[1:]

    def loss_of(w):
        return sum((v - i) ** 2 for i, v in enumerate(w)) / len(w)

    with Session(
        seed=lambda: {"w": Tensor.of("F32", (64,), [0.5] * 64)},
        evaluate=lambda round: loss_of(round.state_dict()["w"].values()),
    ) as session:
        for round in session:
            w = round.state_dict()["w"].values()
            while True:
                w = [v - 0.01 * (v - i) for i, v in enumerate(w)]
                if round.steps == 3:
                    with open(f"{folder}/{name}.pid", "w") as f:
                        f.write(str(os.getpid()))
                time.sleep(0.02)
                if round.step(loss_of(w), samples=64):
                    break
            round.submit({"w": Tensor.of("F32", (64,), w)})
            with open(f"{folder}/{name}.log", "a") as f:
                f.write(f"{round.number} {round.steps} {session.stopping}\\n")
"""


class Federation(Case):
    bin = ""

    @classmethod
    def setUpClass(cls) -> None:
        go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
        if go is None or not os.path.exists(os.path.join(REPOSITORY, "go.mod")):
            raise unittest.SkipTest("a real federation: no Go toolchain, or not in a checkout of the repository")
        cls.bin = tempfile.mkdtemp(prefix="girassol-bin-")
        cls.addClassCleanup(shutil.rmtree, cls.bin)
        commands = ["./coordinator/cmd/coordinator", "./coordinator/cmd/girassol", "./siteagent/cmd/agent"]
        subprocess.run([go, "build", "-o", cls.bin, *commands], cwd=REPOSITORY, check=True)

    def setUp(self) -> None:
        super().setUp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"
        for name, text in (("federation.yaml", CONFIG), ("train.py", script(TORCH if torch else PLAIN))):
            with open(self.path(name), "w") as f:
                f.write(text)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.addCleanup(self.end)
        self.start("coordinator", "--config", self.path("federation.yaml"), "--data", self.path("c"), "--listen", self.address, "--heartbeat", "1s")

    def end(self) -> None:
        for p in reversed(self.processes):
            p.kill()
            p.wait()

    def start(self, command: str, *args: str) -> subprocess.Popen[bytes]:
        with open(self.path("log"), "ab") as log:
            p = subprocess.Popen([os.path.join(self.bin, command), *args], stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": SRC})
        self.processes.append(p)
        return p

    def agent(self, site: str) -> subprocess.Popen[bytes]:
        trainer = ["--", sys.executable, self.path("train.py"), site, self.work]
        return self.start(
            "agent", "--coordinator", self.address, "--federation", "lm", "--site", site, "--data", self.path(site),
            "--retry-max", "1s", "--grace", "20s", *trainer,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        command = [os.path.join(self.bin, "girassol"), "status", "-o", "json", "--address", self.address]
        out = subprocess.run(command, capture_output=True, text=True)
        return json.loads(out.stdout) if out.returncode == 0 else {}

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            got = condition()
            if got:
                return got
            time.sleep(0.1)
        with open(self.path("log"), errors="replace") as f:
            self.fail(f"{what}: not within {PATIENCE:.0f} s\n{json.dumps(self.status(), indent=1)[:3000]}\n{f.read()[-5000:]}")

    def version(self) -> int:
        return int(self.status().get("version") or 0)

    def advance(self, what: str, n: int) -> None:
        target = self.version() + n
        self.until(what, lambda: self.version() >= target)

    def pid(self, site: str) -> int:
        """Of a trainer in mid-round."""
        path = self.path(f"{site}.pid")
        if os.path.exists(path):
            os.unlink(path)
        return self.until(f"{site} trains", lambda: os.path.exists(path) and int(contents(path) or 0))

    def rounds(self, site: str) -> list[list[str]]:
        path = self.path(f"{site}.log")
        return [line.split() for line in contents(path).splitlines()] if os.path.exists(path) else []

    def test_two_sites_train_through_kills_and_a_drain(self) -> None:
        agents = {site: self.agent(site) for site in ("porto", "lisboa")}
        self.until("both sites take part", lambda: all(len(self.rounds(s)) >= 2 for s in agents))
        self.until("commits", lambda: self.version() >= 2)

        os.kill(self.pid("porto"), signal.SIGKILL)
        before = len(self.rounds("porto"))
        self.until("a killed trainer takes part again", lambda: len(self.rounds("porto")) >= before + 2)

        self.pid("lisboa")
        agents["lisboa"].kill()
        agents["lisboa"].wait()
        agents["lisboa"] = self.agent("lisboa")
        before = len(self.rounds("lisboa"))
        self.until("a killed agent takes part again", lambda: len(self.rounds("lisboa")) >= before + 2)
        self.advance("the federation goes on", 1)

        self.pid("porto")
        agents["porto"].terminate()
        self.assertEqual(agents["porto"].wait(PATIENCE), 0)
        with open(self.path("log"), errors="replace") as f:
            log = f.read()
        last = self.rounds("porto")[-1]
        self.assertGreater(int(last[1]), 0)
        self.assertRegex(log, f"update accepted.*round={last[0]}|round={last[0]}.*update accepted")
        self.assertNotIn("update refused", log)
        self.assertNotIn("Traceback", log)


def contents(path: str) -> str:
    with open(path) as f:
        return f.read()


if __name__ == "__main__":
    unittest.main()
