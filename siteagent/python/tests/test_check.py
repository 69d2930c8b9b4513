from __future__ import annotations

import contextlib
import io
import sys
import unittest
from unittest import mock

from .rig import Case, start

from girassol import check
from girassol.__main__ import main

# A trainer of the standard library: one parameter vector, pulled to 3.
GOOD = """
import time
from girassol import Session, Tensor

def seed():
    return {"w": Tensor.of("F32", (4,), [10.0, 11.0, 12.0, 13.0]), "steps": Tensor.of("I64", (), [0])}

def evaluate(round):
    w = round.state_dict()["w"].values()
    return sum((v - 3) ** 2 for v in w)

with Session(seed=seed, evaluate=evaluate) as session:
    for round in session:
        state = round.state_dict()
        w, steps = state["w"].values(), state["steps"].values()[0]
        while True:
            w = [v - 0.01 * (v - 3) for v in w]
            steps += 1
            time.sleep(0.01)
            if round.step(sum((v - 3) ** 2 for v in w), samples=2):
                break
        round.submit({"w": Tensor.of("F32", (4,), w), "steps": Tensor.of("I64", (), [steps])})
"""


class Scripts(Case):
    def check(self, text: str, *, seconds: float = 20.0, **options: object) -> tuple[bool, str]:
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(text)
        out = io.StringIO()
        with open(self.path("stderr"), "wb") as stderr:
            real = check.subprocess.Popen

            def quiet(command: list[str], env: dict[str, str]) -> object:
                return real(command, env=env, stderr=stderr)

            with mock.patch.object(check.subprocess, "Popen", quiet):
                ok = check.Check([sys.executable, path], seconds=seconds, out=out, **options).run()  # type: ignore[arg-type]
        with open(self.path("stderr")) as f:
            self.stderr = f.read()
        return ok, out.getvalue()

    def test_a_good_script(self) -> None:
        ok, out = self.check(GOOD)
        self.assertTrue(ok, out + self.stderr)
        marks = [line.split(":")[0].split(maxsplit=1) for line in out.splitlines()[:-1]]
        self.assertEqual(marks, [["ok", w] for w in ("weights", "round 1", "round 2", "evaluation", "SIGTERM")])

    def test_without_an_evaluation_there_is_a_note(self) -> None:
        ok, out = self.check(GOOD.replace(", evaluate=evaluate", ""))
        self.assertTrue(ok, out)
        self.assertRegex(out, "note +evaluation: .*evaluate=")

    def test_bad_scripts_hear_the_cure(self) -> None:
        for what, old, new, want in (
            ("NaN", "round.submit({", "w = [float('nan')] * 4\n        round.submit({", "round 1: the script failed: .*NaN.*learning rate"),
            ("wrong shape", 'Tensor.of("F32", (4,), w)', 'Tensor.of("F32", (2, 2), w)', r"has shape \[2, 2\], want \[4\]"),
            ("too few tensors", ', "steps": Tensor.of("I64", (), [steps])})', "})", "steps: missing.*whole state_dict"),
            ("renamed", 'submit({"w"', 'submit({"v"', "renamed"),
            ("no step", "if round.step(sum((v - 3) ** 2 for v in w), samples=2):", "if steps:", "call round.step"),
            ("no submit", "        round.submit(", "        str(", "call round.submit"),
            ("no start from given weights", 'w, steps = state["w"].values()', 'w, steps = w if round.number == 2 else state["w"].values()',
             "load_state_dict"),
            ("same weights", "w = [v - 0.01 * (v - 3) for v in w]", "pass", "those that were given"),
            ("no first weights", "seed=seed, ", "", "seed=model"),
            ("exits", "with Session", "raise SystemExit(3)\nwith Session", "ended with status 3 before it asked"),
            ("NaN first weights", "10.0, ", "float('inf'), ", "ended with status 1 before it asked"),
            ("reserved name", '"w"', '"girassol.w"', "may not begin with 'girassol.'"),
            ("bad evaluation", "    return sum", "    1 / 0\n    return sum", "evaluation: the script ended: ZeroDivisionError"),
            ("own way with SIGTERM", "with Session", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwith Session", "SIGTERM: the script did not end"),
        ):  # fmt: skip
            with self.subTest(what):
                self.assertIn(old, GOOD)
                with mock.patch.object(check, "_GRACE", 3.0):
                    ok, out = self.check(GOOD.replace(old, new))
                self.assertFalse(ok, out)
                self.assertRegex(out, want)

    def test_a_script_that_does_not_stop(self) -> None:
        text = GOOD.replace("                break", "                pass").replace("Session(", "Session(late_seconds=0.5, ")
        ok, out = self.check(text, seconds=3.0)
        self.assertFalse(ok)
        self.assertRegex(out, "if round.step.*break")

    def test_a_script_that_hangs(self) -> None:
        with mock.patch.object(check, "_GRACE", 0.5):
            ok, out = self.check(GOOD.replace("while True:", "time.sleep(60)\n        while True:"), seconds=0.5)
        self.assertFalse(ok)
        self.assertRegex(out, "no sign of life: call round.step")

    def test_samples_of_a_shared_corpus(self) -> None:
        text = GOOD.replace("while True:", "for batch in round.batches(round.sampler(2)):")
        ok, out = self.check(text, data=1000)
        self.assertTrue(ok, out + self.stderr)
        self.assertIn("round 1: 8 of 1000 samples of the corpus were used", out)
        ok, out = self.check(GOOD, data=1000)
        self.assertFalse(ok)
        self.assertRegex(out, "round 1: the script failed: .*draw them from round.data")

    def test_a_script_of_another_site_starts_from_a_file(self) -> None:
        from girassol import Tensor, safetensors

        safetensors.save(self.path("m"), {"w": Tensor.of("F32", (4,), [9, 9, 9, 9]), "steps": Tensor.of("I64", (), [0])})
        ok, out = self.check(GOOD.replace("seed=seed, ", ""), model=self.path("m"))
        self.assertTrue(ok, out)

    def test_the_command_line(self) -> None:
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write("import sys\n" + GOOD.replace("with Session", "assert sys.argv[1:] == ['--lr', '1']\nwith Session"))
        process = start("-m", "girassol", "check", "--seconds", "20", path, "--lr", "1")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("ready for a federation", out)
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            main([])


if __name__ == "__main__":
    unittest.main()
