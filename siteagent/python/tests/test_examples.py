"""The examples in PyTorch, two sites and two rounds each, and the Go trainer
beside one of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

from .federation import FederationCase, binaries
from .rig import PATIENCE, SRC, AgentCase, contents
from .test_agent import REPOSITORY

from girassol import Tensor, safetensors, standin

try:
    import numpy  # noqa: F401
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = unittest.skipIf(torch is None, "torch and numpy are not installed")
EXAMPLES = os.path.join(REPOSITORY, "examples", "pytorch")


def example(name: str, *args: str) -> list[str]:
    return [sys.executable, os.path.join(EXAMPLES, name), *args]


@needs_torch
class Examples(FederationCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        text = contents(os.path.join(EXAMPLES, "federation.yaml")).decode()
        cls.config = text.replace("trainSeconds: 5", "trainSeconds: 2")

    def federation(self, porto: list[str], lisboa: list[str], below: float) -> None:
        """Two updates of each site and more, until the held-out loss is below what untrained weights have."""
        self.agent("porto", *porto, federation="first")
        self.agent("lisboa", *lisboa, federation="first")
        accepted = [f'"update accepted" .*member={site}/' for site in ("porto", "lisboa")]
        self.until("two updates of each", lambda: all(len(re.findall(a, self.log())) >= 2 for a in accepted))
        self.until(f"a held-out loss below {below}", lambda: 0 <= self.status().get("evaluation", {}).get("loss", below) < below)
        self.assertGreaterEqual(self.version(), 2)
        self.assertNotIn("update refused", self.log())
        self.assertNotIn("Traceback", self.log())

    def test_cnn(self) -> None:
        self.federation(example("cnn.py", "0"), example("cnn.py", "1"), below=1.3)  # of 4 classes: ln 4 = 1.39
        facts = self.until("how they train is shown", lambda: self.status()["sites"][0]["members"][0]["trainer"])
        self.assertEqual(facts["batchSize"], "32")

    def test_ppo(self) -> None:
        self.federation(example("ppo.py", "0"), example("ppo.py", "1"), below=10)  # falls; 20 untrained

    def test_gpt_and_the_go_trainer_train_one_model(self) -> None:
        go = [os.path.join(self.bin, "agent"), "trainer", "--data", SRC, "--held-out", os.path.dirname(os.path.abspath(__file__))]
        self.federation(go, example("gpt.py", "1"), below=5)  # ln 256 = 5.55


@needs_torch
class Peers(AgentCase):
    """gpt.py and the Go trainer, one after the other, at a stand-in agent."""

    def test_they_have_one_layout_and_one_loss(self) -> None:
        agent = os.path.join(binaries(), "agent")
        text = os.path.join(self.dir, "text")
        os.mkdir(text)
        for name in ("a.py", "b.py"):  # the first is held out
            with open(os.path.join(text, name), "wb") as f:
                f.write(contents(safetensors.__file__))
        lists = {name: os.path.join(self.dir, name) for name in ("a", "b")}
        for name, path in lists.items():
            with open(path, "w") as f:
                f.write(os.path.join(text, name + ".py"))
        trainers = [
            [agent, "trainer", "--files", lists["b"], "--held-out-files", lists["a"], "--evaluate-tokens", "8192"],
            example("gpt.py", "0", "--sites", "1", "--text", text, "--device", "cpu"),
        ]
        layouts, losses, model = [], [], self.path("sharp.safetensors")
        for trainer in trainers:
            self.agent.want_seed()
            env = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
            env |= {"GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work}
            process = subprocess.Popen(trainer, env=env, stderr=subprocess.DEVNULL)
            try:
                self.assertTrue(self.agent.wait(lambda a: len(a.seeds) > len(layouts), PATIENCE), "no first weights")
                with safetensors.File(self.agent.seeds[-1]) as first:
                    layouts.append(dict(sorted(first.specs.items())))
                    if not losses:
                        # Far from flat, so that position, attention and norms all tell.
                        rng = numpy.random.default_rng(1)
                        safetensors.save(model, {n: t * 2 + rng.normal(size=t.shape, scale=0.1).astype("f4") for n, t in first.load(framework="numpy").items()})
                task = self.agent.give(standin.Task(f"e{len(losses)}", "evaluate", 1, model, PATIENCE))
                self.assertTrue(task.done.wait(PATIENCE), "no evaluation")
                assert task.result is not None, task.failure
                self.assertEqual(task.result["samples"], 8192)
                losses.append(task.result["loss"])
            finally:
                process.kill()
                process.wait()
        self.assertEqual(*layouts)
        self.assertGreater(losses[0], 7)
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-4)


if __name__ == "__main__":
    unittest.main()
