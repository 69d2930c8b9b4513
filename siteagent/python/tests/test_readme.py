"""The README's script, file and commands, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import unittest

from .federation import FederationCase
from .rig import SRC, contents

try:
    import numpy  # noqa: F401
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

README = contents(os.path.join(os.path.dirname(SRC), "README.md")).decode()


@unittest.skipIf(torch is None, "torch and numpy are not installed")
class Readme(FederationCase):
    def test_a_new_users_path(self) -> None:
        blocks = dict(re.findall(r"```(\w+)\n(.*?)```", README, re.S))
        for name, kind in (("train.py", "python"), ("federation.yaml", "yaml")):
            with open(self.path(name), "w") as f:
                f.write(blocks[kind])
        commands = blocks["sh"].splitlines()
        self.assertLessEqual(len(commands), 6)
        self.end()
        self.processes.clear()
        # The first two build and install, which is make python's business.
        check, *servers = commands[2:]
        self.assertEqual(self.command(check).wait(120), 0, self.log())
        self.assertIn("ready for a federation", self.log())
        for command in servers:
            self.command(command)
        self.until("commits", lambda: self.version() >= 3)
        self.until("a held-out loss", lambda: self.status().get("evaluation", {}).get("loss"))

    def command(self, line: str) -> subprocess.Popen[bytes]:
        words = [os.path.join(self.bin, w[4:]) if w.startswith("bin/") else w for w in shlex.split(line)]
        words = [sys.executable if w == "python3" else w.replace("127.0.0.1:7465", self.address) for w in words]
        if words[0].endswith("coordinator"):
            words += ["--listen", self.address]
        with open(self.path("log"), "ab") as log:
            env = {**os.environ, "PYTHONPATH": SRC}
            self.processes.append(subprocess.Popen(words, cwd=self.work, stdout=log, stderr=log, env=env))
        return self.processes[-1]


if __name__ == "__main__":
    unittest.main()
