"""Scripts that make mistakes, in a real federation: each is refused or stopped
with the cure, where a person looks, and the others train on."""

from __future__ import annotations

import re
import unittest

from .federation import FederationCase

MISTAKES = {
    # site: what it submits or does instead, and what must be read about it
    "nan": ("w = [float('nan')] * 64", r"not finite .*: (v|w).*[Ll]ower the learning rate"),
    "shapes": ("shape = (8, 8)", r"has shape \[8, 8\], want \[64\].*Build the model with the settings"),
    "swapped": ("v, w = w, v", "v and w stand in each other's place.*Names must stay"),
    "few": ("names = 'w'", r"v: missing \(want F32 \[64\]\).*whole state_dict"),
    "stepless": ("silent = True", r"round.step\(\) was not called in the \d+ s of the round: call it after each optimizer step"),
    "raw": ("w = [float('inf')] * 64; checks = False", r"NotFinite: w: element 0 is \+Inf"),
    "lossless": ("loss = float('nan')", "the loss is nan since 10 steps.*lower the learning rate"),
}
SCRIPT = """
    import sys, time
    from unittest import mock
    from girassol import Session, Tensor, _layout

    name = sys.argv[1]
    mistake = {mistakes}.get(name, "")

    def seed():
        return {{"v": Tensor.of("F32", (64,), [-1.0] * 64), "w": Tensor.of("F32", (64,), [float(i) for i in range(64)])}}

    # Only the good site begins, so that it is everybody's model.
    with Session(seed=seed if name == "good" else None, late_seconds=1.0) as session:
        for round in session:
            v, w = (round.state_dict()[n].values() for n in "vw")
            names, shape, loss, checks, silent = "vw", (64,), 1.0, True, False
            v, w = [x + 0.001 for x in v], [x + 0.001 for x in w]
            exec(mistake)
            while silent or not round.step(loss, samples=1):
                time.sleep(0.02)
                if silent and round.seconds_left < -3:
                    break
            if not checks:  # as a trainer without this package
                for check in ("check_layout", "check_finite", "check_swapped"):
                    mock.patch.object(_layout, check).start()
            round.submit({{n: Tensor.of("F32", shape, {{"v": v, "w": w}}[n]) for n in names}})
"""
CONFIG = """
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {{name: lm}}
spec:
  sites: [{names}]
  energy: {{policy: Ignore}}
  algorithm: {{strategy: FedAvg}}
  rounds: {{trainSeconds: 2, collectSeconds: 10}}
{sites}
"""
SITES = ["good", *MISTAKES]


class Refusals(FederationCase):
    script = SCRIPT.format(mistakes={site: code for site, (code, _) in MISTAKES.items()})
    config = CONFIG.format(
        names=", ".join("{name: %s}" % s for s in SITES),
        sites="".join(f"---\napiVersion: girassol.dev/v1alpha1\nkind: Site\nmetadata: {{name: {s}}}\n" for s in SITES),
    )

    def test_mistakes_are_told_with_their_cure_and_the_others_train_on(self) -> None:
        for site in SITES:
            self.agent(site, log=f"{site}.out")
        for site, (_, cure) in MISTAKES.items():
            with self.subTest(site):
                self.until(f"{site} is told", lambda: re.search(cure, self.log(f"{site}.out")))
        self.advance("the good site goes on", 2)
        self.assertRegex(self.log(), '"update accepted" .*member=good/')
        # Without a loss the weights may be sound all the same: fewer than ten such steps count.
        refused = "|".join(MISTAKES.keys() - {"lossless"})
        self.assertNotRegex(self.log(), f'"update accepted" .*member=({refused})/')


if __name__ == "__main__":
    unittest.main()
