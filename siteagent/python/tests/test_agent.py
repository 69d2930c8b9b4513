"""Against the Go agent's own trainer API, where a Go toolchain is present."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
from typing import Any

from .rig import PATIENCE, Case, add, model, script, start

import girassol
from girassol import Tensor, safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def server_binary() -> tuple[str, str]:
    """Path of the built server, or why there is none."""
    go = shutil.which("go") or ("/usr/local/go/bin/go" if os.path.exists("/usr/local/go/bin/go") else None)
    if go is None:
        return "", "no Go toolchain"
    if not os.path.exists(os.path.join(REPOSITORY, "go.mod")):
        return "", "not in a checkout of the repository"
    out = os.path.join(tempfile.mkdtemp(prefix="girassol-testserver-"), "testserver")
    built = subprocess.run([go, "build", "-o", out, "./siteagent/python/testserver"], cwd=REPOSITORY, capture_output=True, text=True)
    return (out, "") if built.returncode == 0 else ("", "go build: " + built.stderr[-500:])


class Server:
    """The agent's server in a process."""

    def __init__(self, binary: str, socket: str, work: str) -> None:
        self._process = subprocess.Popen([binary, socket, work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear()["event"] == "ready"

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def say(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class GoAgent(Case):
    binary = ""

    @classmethod
    def setUpClass(cls) -> None:
        cls.binary, why = server_binary()
        if not cls.binary:
            raise unittest.SkipTest(f"the Go agent's trainer API: {why}")
        cls.addClassCleanup(shutil.rmtree, os.path.dirname(cls.binary))

    def setUp(self) -> None:
        super().setUp()
        os.chmod(self.work, 0o700)
        self.socket = os.path.join(self.dir, "run", "s")
        self.server = Server(self.binary, self.socket, self.work)
        self.addCleanup(self.server.close)

    def run_task(self, kind: str = "train", seconds: float = 30.0, **more: Any) -> None:
        if not os.path.exists(self.path("model.safetensors")):
            self.write_model()
        task = {
            "id": f"{kind}-1", "kind": kind, "round": 3, "modelPath": self.path("model.safetensors"),
            "stopAt": "2000-01-01T00:00:00Z", "stopInSeconds": 0, "committedSamples": 7, **more,
        }  # fmt: skip
        if kind == "train":
            task["resultPath"] = self.path("result.safetensors")
        self.server.say(op="run", task=task, seconds=seconds)

    def session(self, **options: Any) -> girassol.Session:
        return girassol.Session(socket_path=self.socket, work_dir=self.work, **options)

    def test_a_round_from_weights_to_result(self) -> None:
        self.run_task(maxSteps=3)
        with self.session() as session:
            for round in session:
                self.assertEqual((round.number, round.max_steps, round.committed_samples), (3, 3, 7))
                self.assertLess(round.seconds_left, 30)
                start = round.state_dict(framework="buffers")
                while not round.step(loss=2.0, samples=5):
                    pass
                self.assertTrue(round.submit(add(start, 0.5), metrics={"accuracy": 0.5}))
                session.stop()
        ended = self.server.hear()
        self.assertNotIn("error", ended)
        self.assertEqual((ended["result"]["steps"], ended["result"]["samples"], ended["result"]["loss"]), (3, 15, 2.0))
        self.assertEqual(ended["result"]["metrics"]["accuracy"], 0.5)
        self.assertEqual(ended["values"], {"layer.weight": 0.5, "layer.bias": 1.0, "half": 1.5, "scale": 2.5, "bn.running_mean": 0.5})
        got = safetensors.load(ended["result"]["path"], framework="buffers")
        self.assertEqual((got["half"].values(), got["bn.num_batches_tracked"].values()), ([1.5, 3.5], [(1 << 62) + 1]))

    def test_first_weights_are_asked_for_and_read(self) -> None:
        self.server.say(op="seed")
        with self.session(seed=model) as session:
            heard: list[dict[str, Any]] = []

            def listen() -> None:
                heard.append(self.server.hear())
                session.stop()

            thread = threading.Thread(target=listen)
            thread.start()
            self.assertEqual(list(session), [])
            thread.join()
        self.assertEqual(heard[0]["event"], "seed")
        self.assertNotIn("error", heard[0])

    def test_first_weights_are_given_in_mid_poll_when_they_get_wanted(self) -> None:
        made = threading.Event()

        def seed() -> dict[str, Tensor]:
            made.set()
            return model()

        with self.session(seed=seed) as session:
            threading.Timer(0.3, lambda: self.server.say(op="seed")).start()
            thread = threading.Thread(target=lambda: (self.server.hear(), session.stop()))
            thread.start()
            self.assertEqual(list(session), [])
            thread.join()
        self.assertTrue(made.is_set())

    def test_finish_and_abort(self) -> None:
        for order, taken in (("finish", True), ("abort", False)):
            with self.subTest(order):
                self.run_task()
                with self.session() as session:
                    for round in session:
                        round.step(1.0)
                        self.server.say(op=order)
                        while not round.step(1.0):
                            threading.Event().wait(0.01)
                        self.assertEqual(round.aborted, not taken)
                        self.assertEqual(round.submit(round.state_dict(framework="buffers")), taken)
                        session.stop()
                ended = self.server.hear()
                self.assertEqual("result" in ended and "error" not in ended, taken)

    def test_an_evaluation(self) -> None:
        self.run_task("evaluate")
        with self.session(evaluate=lambda r: (r.step(1.5, samples=8), None)[1]) as session:
            thread = threading.Thread(target=lambda: (self.heard.append(self.server.hear()), session.stop()))
            self.heard: list[dict[str, Any]] = []
            thread.start()
            list(session)
            thread.join()
        self.assertEqual(self.heard[0]["result"], {"steps": 1, "samples": 8, "loss": 1.5})

    def test_a_failure_carries_the_end_of_the_traceback(self) -> None:
        self.run_task()
        with self.assertRaises(ZeroDivisionError), self.session() as session:
            for _ in session:
                1 / 0
        self.assertRegex(self.server.hear()["error"], r"TrainerFailed.*Traceback[\s\S]*ZeroDivisionError: division by zero$")

    def test_what_this_package_takes_the_agent_takes_and_the_rest_it_refuses(self) -> None:
        # The same mistakes, past this package's own check: both sides agree.
        from unittest import mock

        wrong = Tensor.of("F32", (1,), [1])
        for change, want in (
            (lambda s: s.pop("scale"), "MissingTensor: scale: missing"),
            (lambda s: s.update(scale=wrong), "ShapeMismatch: scale: has shape"),
            (lambda s: s.update({"bn.num_batches_tracked": Tensor.of("F32", (), [1])}), "DTypeMismatch"),
            (lambda s: s.update(more=wrong), "UnknownTensor: more: unknown"),
        ):
            self.run_task(maxSteps=1)
            with self.session() as session:
                round = next(session)
                round.step(1.0)
                state = round.state_dict(framework="buffers")
                change(state)
                with self.assertRaises(girassol.LayoutError):
                    round.submit(state)
                with mock.patch("girassol._layout.check_layout"):
                    self.assertTrue(round.submit(state))
                session.stop()
            self.assertIn(want, self.server.hear()["error"])

    def test_sigterm_in_a_process_cuts_the_round_short_and_counts(self) -> None:
        self.run_task()
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(script("""
                import time, girassol
                with girassol.Session() as session:
                    for round in session:
                        state = round.state_dict()
                        print("begun", flush=True)
                        while not round.step(1.0, samples=2):
                            time.sleep(0.01)
                        round.submit(state)
                print("ended", flush=True)
            """))
        process = start(path, env={"GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work})
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "begun\n")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual((process.returncode, out), (0, "ended\n"))
        ended = self.server.hear()
        self.assertNotIn("error", ended)
        self.assertGreater(ended["result"]["steps"], 0)

    def test_a_killed_trainer_is_followed_by_another_in_the_same_round(self) -> None:
        self.run_task(maxSteps=2)
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(script("""
                import os, signal, sys, girassol
                with girassol.Session() as session:
                    for round in session:
                        round.step(1.0)
                        if sys.argv[1] == "dies":
                            os.kill(os.getpid(), signal.SIGKILL)
                        round.step(1.0)
                        round.submit(round.state_dict())
                        session.stop()
            """))
        env = {"GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work}
        for how, status in (("dies", -signal.SIGKILL), ("lives", 0)):
            process = start(path, how, env=env)
            process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, status)
        ended = self.server.hear()
        self.assertNotIn("error", ended)
        self.assertEqual(ended["result"]["steps"], 2)


if __name__ == "__main__":
    unittest.main()
