"""The commands of examples/flower: two sites with a Flower app in a real federation."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import unittest

from .federation import FederationCase
from .flower import EXAMPLE, NUMPY, PATHS
from .rig import contents

SITES = ("porto", "lisboa")


def example(name: str) -> str:
    path = os.path.join(EXAMPLE, name)
    return contents(path).decode() if os.path.exists(path) else ""


@unittest.skipUnless(NUMPY, "Flower apps need numpy")
class Example(FederationCase):
    config = example("federation.yaml")

    def start_site(self, site: str) -> None:
        """As the page says, in this test's folder."""
        (line,) = (line for line in example("README.md").splitlines() if line.startswith("bin/agent") and f"--site {site} " in line)
        words = line.replace("127.0.0.1:7465", self.address).replace("run/", self.work + "/").replace("examples/flower", EXAMPLE)
        command, trainer = words.split(" -- python3 ")
        python = ["env", f"PYTHONPATH={os.pathsep.join(PATHS)}", sys.executable]
        self.start("agent", *shlex.split(command)[1:], "--retry-max", "1s", "--grace", "20s", "--", *python, *shlex.split(trainer))

    def contributed(self, site: str) -> int:
        """Rounds in which a site's update was merged."""
        return sum(int(s["roundsContributed"]) for s in self.status().get("sites", []) if s["name"] == site)

    def trainers(self, site: str) -> dict[int, str]:
        """Processes that the site's agent has started, and those that they have, with their commands."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if f"GIRASSOL_TRAINER_WORKDIR={self.work}/{site}/".encode() in contents(f"/proc/{name}/environ"):
                    found[int(name)] = contents(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def kept(self, site: str, name: str) -> str:
        """A file of a site's state folder, wherever the agent has its work folder."""
        (path,) = (os.path.join(d, name) for d, _, files in os.walk(self.path(site)) if name in files)
        return path

    def test_two_sites_train_an_app_through_kills(self) -> None:
        for site in SITES:
            self.start_site(site)
        self.until("both sites take part", lambda: all(self.contributed(s) >= 2 for s in SITES))
        evaluation = self.until("an evaluation", lambda: self.status().get("evaluation"))
        self.assertIn("eval_acc", evaluation["metrics"])
        identity = contents(self.kept("porto", "identity.json"))

        # The app's process, then the command itself.
        for part in ("girassol.flower._child", "girassol flower"):
            before = self.contributed("porto")
            (pid,) = (p for p, command in self.trainers("porto").items() if part in command)
            os.kill(pid, signal.SIGKILL)
            self.until("a killed trainer takes part again", lambda: self.contributed("porto") >= before + 2)
        self.assertEqual(contents(self.kept("porto", "identity.json")), identity)
        self.assertTrue(self.kept("porto", "state"))

        agents = self.processes[1:]
        for agent in agents:
            agent.terminate()
        self.assertEqual([agent.wait(90) for agent in agents], [0, 0])
        self.until("no trainer is left", lambda: not any(self.trainers(site) for site in SITES))
        self.assertNotIn("update refused", self.log())
        self.assertNotIn("Traceback", self.log())


if __name__ == "__main__":
    unittest.main()
