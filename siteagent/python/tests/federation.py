"""A real federation for tests: coordinator, agents and trainers as processes,
where a Go toolchain is present."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

from .rig import SRC, Case, contents, script
from .test_agent import REPOSITORY

PATIENCE = 90.0

CONFIG = """
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec:
  sites: [{name: porto}, {name: lisboa}]
  energy: {policy: Ignore}
  rounds: {trainSeconds: 2, collectSeconds: 10}
  evaluation: {every: 2}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: porto}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: lisboa}
"""


@functools.lru_cache(None)
def binaries() -> str:
    """Folder of the built commands, for all tests of the process."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None or not os.path.exists(os.path.join(REPOSITORY, "go.mod")):
        raise unittest.SkipTest("a real federation: no Go toolchain, or not in a checkout of the repository")
    folder = tempfile.mkdtemp(prefix="girassol-bin-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    commands = ["./coordinator/cmd/coordinator", "./coordinator/cmd/girassol", "./siteagent/cmd/agent"]
    subprocess.run([go, "build", "-o", folder, *commands], cwd=REPOSITORY, check=True)
    return folder


class FederationCase(Case):
    """A test with a coordinator."""

    bin = ""
    script = ""
    """Text of train.py."""
    config = CONFIG

    @classmethod
    def setUpClass(cls) -> None:
        cls.bin = binaries()

    def setUp(self) -> None:
        super().setUp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"
        for name, text in (("federation.yaml", self.config), ("train.py", script(self.script))):
            with open(self.path(name), "w") as f:
                f.write(text)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.addCleanup(self.end)
        self.start("coordinator", "--config", self.path("federation.yaml"), "--data", self.path("c"), "--listen", self.address, "--heartbeat", "1s")

    def end(self) -> None:
        """Kill all; an agent's trainer dies with it."""
        for p in reversed(self.processes):
            p.kill()
            p.wait()
        self.processes.clear()

    def start(self, command: str, *args: str, log: str = "log") -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
        with open(self.path(log), "ab") as out:
            p = subprocess.Popen([os.path.join(self.bin, command), *args], stdout=out, stderr=out, env=env)
        self.processes.append(p)
        return p

    def agent(self, site: str, *trainer: str, federation: str = "lm", log: str = "log") -> subprocess.Popen[bytes]:
        """An agent of the site, with train.py or another trainer."""
        trainer = trainer or (sys.executable, self.path("train.py"), site, self.work)
        return self.start(
            "agent", "--coordinator", self.address, "--federation", federation, "--site", site, "--data", self.path(site),
            "--retry-max", "1s", "--grace", "20s", "--", *trainer, log=log,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        command = [os.path.join(self.bin, "girassol"), "status", "-o", "json", "--address", self.address]
        out = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        return json.loads(out.stdout) if out.returncode == 0 else {}

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            got = condition()
            if got:
                return got
            time.sleep(0.1)
        self.fail(f"{what}: not within {PATIENCE:.0f} s\n{json.dumps(self.status(), indent=1)[:3000]}\n{self.log()[-5000:]}")

    def log(self, name: str = "log") -> str:
        """What all processes wrote, or those with a log of that name."""
        return contents(self.path(name)).decode(errors="replace")

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
        return [line.split() for line in contents(path).decode().splitlines()] if os.path.exists(path) else []
