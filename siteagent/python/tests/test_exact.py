"""What values, types and shapes become on the whole way: two PyTorch sites, two
agents, a coordinator that averages densely."""

from __future__ import annotations

import json
import os
import unittest

from .federation import CONFIG, FederationCase
from .rig import contents

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

SCRIPT = """
    import json, sys
    import torch
    import girassol

    name, folder = sys.argv[1:]
    one = name == "porto"
    mine = {
        "w": torch.tensor([1.0, 3.0] if one else [2.0, 5.0]).bfloat16(),
        "half": torch.tensor(0.5 if one else 1.0).half(),
        "scale": torch.tensor(2.0 if one else 4.0),
        "empty": torch.zeros(0, 3),
        "counter": torch.tensor((1 << 62) + (1 if one else 2)),
        "ids": torch.tensor([[7, -8]], dtype=torch.int32),
        "mask": torch.tensor([True, False]),
    }
    with girassol.Session(seed={n: torch.zeros_like(t) for n, t in mine.items()}) as session:
        for round in session:
            got = {n: [str(t.dtype)[6:], list(t.shape), t.double().tolist() if t.is_floating_point() else t.tolist()] for n, t in round.state_dict().items()}
            with open(f"{folder}/{name}.log", "a") as f:
                f.write(json.dumps(got) + "\\n")
            round.step(1.0, samples=10)
            round.submit(mine)
"""


@unittest.skipIf(torch is None, "torch is not installed")
class Exact(FederationCase):
    script = SCRIPT
    config = CONFIG.replace(
        "energy: {policy: Ignore}",
        "energy: {policy: Ignore}\n  algorithm: {strategy: FedAvg, outerLearningRate: 1, outerMomentum: 0}",
    ).replace("trainSeconds: 2, collectSeconds: 10", "trainSeconds: 60, collectSeconds: 60, minSites: 2").replace("\n  evaluation: {every: 2}", "")

    def test_the_mean_of_bf16_is_exact_and_integers_and_0d_tensors_stay_what_they_are(self) -> None:
        for site in ("porto", "lisboa"):
            self.agent(site)
        for site in ("porto", "lisboa"):
            third = self.until(f"{site} begins a third round", lambda: self.begun(site)[2:3])[0]
            self.assertIn(third.pop("counter"), (["int64", [], (1 << 62) + 1], ["int64", [], (1 << 62) + 2]))  # one of them, whole
            self.assertEqual(
                third,
                {
                    "w": ["bfloat16", [2], [1.5, 4.0]],
                    "half": ["float16", [], 0.75],
                    "scale": ["float32", [], 3.0],
                    "empty": ["float32", [0, 3], []],
                    "ids": ["int32", [1, 2], [[7, -8]]],
                    "mask": ["bool", [2], [True, False]],
                },
            )
        self.assertNotIn("update refused", self.log())

    def begun(self, site: str) -> list[dict[str, list[object]]]:
        path = self.path(f"{site}.log")
        if not os.path.exists(path):
            return []
        return [json.loads(line) for line in contents(path).decode().splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    unittest.main()
