"""The README's script and commands, and those of the examples, as they stand
there: from an empty folder to a model that two sites train."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import unittest

from .federation import FederationCase
from .rig import SRC, contents
from .test_agent import REPOSITORY

try:
    import numpy  # noqa: F401
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

PACKAGE = os.path.dirname(SRC)


def blocks(folder: str) -> dict[str, str]:
    """The first block of each kind in a README."""
    found: dict[str, str] = {}
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", contents(os.path.join(folder, "README.md")).decode(), re.S):
        found.setdefault(kind, text)
    return found


@unittest.skipIf(torch is None, "torch and numpy are not installed")
class Readme(FederationCase):
    def setUp(self) -> None:
        super().setUp()
        self.end()  # the README has a coordinator of its own
        for name in ("examples", "siteagent"):
            os.symlink(os.path.join(REPOSITORY, name), self.path(name))
        self.packages = self.path("packages")

    def test_a_new_users_path(self) -> None:
        build, install, check, *servers = blocks(PACKAGE)["sh"].splitlines()
        self.assertLessEqual(3 + len(servers), 6)
        self.build(build)
        self.install(install)
        self.assertEqual(self.command(check).wait(180), 0, self.log())
        self.assertIn("ready for a federation", self.log())
        for command in servers:
            self.command(command)
        self.until("commits", lambda: self.version() >= 2)
        self.until("a held-out loss", lambda: self.status().get("evaluation", {}).get("loss"))
        self.assertNotIn("Traceback", self.log())

    def test_the_script(self) -> None:
        with open(self.path("train.py"), "w") as f:
            f.write(blocks(PACKAGE)["python"])
        self.packages = SRC
        self.assertEqual(self.command("python3 -m girassol check train.py 1").wait(180), 0, self.log())

    def test_the_examples_go_the_same_way(self) -> None:
        # They are run in test_examples; here only that the pages agree.
        mine, theirs = (blocks(f)["sh"] for f in (PACKAGE, os.path.join(REPOSITORY, "examples", "pytorch")))
        self.assertEqual(mine.replace("gpt.py", "cnn.py"), theirs)

    def build(self, line: str) -> None:
        """As it stands, but for Go's path and the interpreter of the tests."""
        first = self.path("first")
        os.mkdir(first)
        os.symlink(sys.executable, os.path.join(first, "python3"))
        path = os.pathsep.join([first, os.environ.get("PATH", ""), "/usr/local/go/bin"])
        done = subprocess.run(shlex.split(line), cwd=REPOSITORY, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        if done.returncode and "pip" in done.stderr:
            self.skipTest("make python: pip is missing or PyPI, which has setuptools, is out of reach: " + done.stderr[-300:])
        self.assertEqual(done.returncode, 0, done.stderr)
        os.symlink(os.path.join(REPOSITORY, "bin"), self.path("bin"))

    def install(self, line: str) -> None:
        """The wheel into a folder of its own; torch and numpy are there."""
        words = shlex.split(line)
        self.assertEqual((words[:2], words[3:]), (["pip", "install"], ["torch", "numpy"]))
        dist = os.path.join(PACKAGE, "dist")
        (wheel,) = (os.path.join(dist, n) for n in os.listdir(dist) if n.endswith(".whl"))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", self.packages, wheel]
        subprocess.run(command, check=True, capture_output=True)
        self.assertTrue(os.path.exists(os.path.join(self.packages, "girassol", "py.typed")))

    def command(self, line: str) -> subprocess.Popen[bytes]:
        words = [sys.executable if w == "python3" else w.replace("127.0.0.1:7465", self.address) for w in shlex.split(line)]
        if words[0].endswith("coordinator"):
            words += ["--listen", self.address]
        with open(self.path("log"), "ab") as log:
            env = {**os.environ, "PYTHONPATH": self.packages, "OMP_NUM_THREADS": "1"}
            self.processes.append(subprocess.Popen(words, cwd=self.work, stdout=log, stderr=log, env=env))
        return self.processes[-1]


if __name__ == "__main__":
    unittest.main()
