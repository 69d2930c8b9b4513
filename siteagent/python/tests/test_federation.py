"""Two sites of this package's trainers in a real federation."""

from __future__ import annotations

import os
import signal
import unittest

from .federation import PATIENCE, FederationCase

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

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


class Federation(FederationCase):
    script = TORCH if torch else PLAIN

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
        log = self.log()
        last = self.rounds("porto")[-1]
        self.assertGreater(int(last[1]), 0)
        self.assertRegex(log, f"update accepted.*round={last[0]}|round={last[0]}.*update accepted")
        self.assertNotIn("update refused", log)
        self.assertNotIn("Traceback", log)


if __name__ == "__main__":
    unittest.main()
