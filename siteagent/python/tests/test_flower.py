"""Flower apps under girassol flower, beside a stand-in of the agent."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import unittest

from .flower import CLIENT, EXAMPLE, LEGACY, REAL, FlowerCase, write_app
from .rig import PATIENCE, contents, model

from girassol import Tensor, safetensors
from girassol.flower._errors import FlowerError
from girassol.flower._runner import Runner


TORCH = importlib.util.find_spec("torch") is not None


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Modern(FlowerCase):
    def test_train_and_evaluate(self) -> None:
        self.run_app("--run-config", "amount=0.25", "--train-config", "lr=0.125", "--weighted-by", "num-examples")
        got = self.result(self.do())
        metrics = got["metrics"]
        self.assertEqual((got["steps"], got["samples"], got["loss"]), (1, 7, 2.5))
        for name, want in {"calls": 1, "seen.round": 1, "seen.group": 1, "seen.alive": 1, "seen.ids": 1, "seen.config": 0.125}.items():
            self.assertEqual(metrics[name], want, name)
        self.assertNotIn("list", metrics)
        self.assertNotIn("num-examples", metrics)

        # bf16 is widened and exact, 0-d keeps its shape, whole numbers their type.
        trained, began = safetensors.load(got["path"], framework="buffers"), model()
        self.assertEqual(trained.keys(), began.keys())
        for name, t in began.items():
            want_dtype = "F32" if t.dtype == "BF16" else t.dtype
            self.assertEqual((trained[name].dtype, trained[name].shape), (want_dtype, t.shape), name)
            want_values = Tensor.of(want_dtype, t.shape, [v + 0.25 if t.spec.is_float else v for v in t.values()])
            for a, b in zip(trained[name].values(), want_values.values()):
                self.assertAlmostEqual(a, b, 6)

        got = self.result(self.do("evaluate"))
        self.assertEqual((got["loss"], got["samples"], got["metrics"]["eval_acc"]), (1.5, 5, 0.75))
        failure = str(self.do("evaluate", metric="mean").failure)
        self.assertIn("has no loss under a usual name; it has eval_acc, mean, num-examples", failure)
        self.assertIn("num-examples is 0", str(self.do("evaluate", examples=0).failure))
        self.assertEqual(self.result(self.do("evaluate"))["loss"], 1.5)

    def test_what_goes_wrong_in_a_call_reaches_the_agent_with_the_cure(self) -> None:
        self.run_app()
        self.result(self.do())
        for mode, want in (
            ("raise", r'client.py", line \d+, in train\n.*\n(.*\n)?RuntimeError: the data set is not there$'),
            ("sys.exit", r"SystemExit: 3\nThe app called sys.exit\(3\)"),
            ("os._exit", "the app's process ended with status 5 in train"),
            ("kill", "the app's process ended with signal SIGKILL in train"),
            ("crash", r"ended with signal SIGABRT in train:\n[\s\S]*client.py"),
            ("partition", "KeyError: 'partition-id'\n.*--node-config partition-id=0"),
            ("key", "KeyError: 'temperature'\n.*--train-config temperature=VALUE"),
            ("none", "train returned a NoneType: return Message"),
            ("error", "replied with error 2: no memory"),
            ("renamed", "layer.bias: missing.*new: unknown.*renamed"),
            ("missing", r"scale: missing \(want F32 \[\]\)"),
            ("shape", r"layer.bias: has shape \[2, 2\], want \[4\]"),
            ("nan arrays", "not finite.*layer.bias"),
            ("float counter", "is F64, want I64.*Cast arrays of whole numbers back"),
            ("complex", "layer.bias: has dtype complex"),
            ("two records", r"train replied with 2 MetricRecords \(metrics, more\), want one"),
            ("no arrays", r"train replied with 0 ArrayRecords \(none\), want one"),
            ("examples none", "has no 'num-examples'.*it has calls, .*--weighted-by NAME"),
            ("examples 0", "num-examples is 0.0: .* must be a positive whole number"),
            ("examples -3", "num-examples is -3.0"),
            ("examples nan", "num-examples is nan"),
            ("examples inf", "num-examples is inf"),
            ("examples 2.5", "num-examples is 2.5"),
        ):
            with self.subTest(mode):
                self.assertRegex(str(self.do(mode=mode).failure), want)
        # The site goes on, and calls that failed have left no trace in ctx.state.
        self.assertEqual(self.result(self.do())["metrics"]["calls"], 2)

    def test_state_is_kept_over_rounds_crashes_and_restarts(self) -> None:
        self.run_app()
        metrics = self.result(self.do())["metrics"]
        self.assertEqual(metrics["calls"], 1)
        os.kill(int(metrics["pid"]), signal.SIGKILL)
        failed = self.do()  # unless it was noticed before the call
        self.assertIn("SIGKILL", failed.failure or "SIGKILL")
        self.assertEqual(self.result(self.do())["metrics"]["calls"], 2 + (failed.failure is None))
        self.stop()
        before = contents(os.path.join(self.state, "identity.json"))
        self.run_app()
        self.assertEqual(self.result(self.do())["metrics"]["calls"], 3 + (failed.failure is None))
        self.stop()
        self.assertEqual(contents(os.path.join(self.state, "identity.json")), before)

        with open(os.path.join(self.state, "state"), "r+b") as f:
            f.truncate(100)
        with self.assertRaisesRegex(FlowerError, "state is damaged.*--damaged-state anew"):
            Runner(self.options()).run()
        self.run_app("--damaged-state", "anew")
        self.assertEqual(self.result(self.do())["metrics"]["calls"], 1)
        self.assertIn("state.damaged-1", os.listdir(self.state))

    def test_one_process_lives_on_and_fresh_makes_one_for_each_call(self) -> None:
        for arguments, want in (((), 1), (("--fresh",), 2)):
            self.run_app(*arguments)
            pids = {self.result(self.do())["metrics"]["pid"] for _ in range(2)}
            self.stop()
            self.assertEqual(len(pids), want)
            self.assertFalse(any(alive(int(p)) for p in pids))

    def hang(self, *arguments: str, seconds: float) -> tuple[object, int]:
        self.run_app(*arguments)
        self.result(self.do())  # a task with a near stop time is not for an app that still loads
        pid = self.path("pid")
        task = self.give("train", seconds, config={"mode": '"hang"', "pid": f'"{pid}"'})
        self.agent.wait(lambda _: (os.path.exists(pid) and contents(pid) != b"") or task.done.is_set() or self.error, PATIENCE)
        self.assertTrue(os.path.exists(pid), self.error or task.failure)
        return task, int(contents(pid))

    def test_a_call_that_hangs_is_ended_after_the_stop_time_and_says_where_it_was(self) -> None:
        task, pid = self.hang("--late-seconds", "1", seconds=4.0)
        failure = str(self.wait(task).failure)  # type: ignore[arg-type]
        self.assertIn("did not return 1 s after the stop time", failure)
        self.assertRegex(failure, r'client.py", line \d+ in train')
        self.assertTrue(task.progress)  # type: ignore[attr-defined]
        self.assertFalse(alive(pid))
        self.result(self.do())

    def test_a_call_that_nobody_waits_for_is_ended_at_once(self) -> None:
        task, pid = self.hang(seconds=120.0)
        self.agent.drop(task)  # type: ignore[arg-type]
        self.result(self.do())
        self.assertFalse(alive(pid))

    def test_a_call_that_the_agent_wants_to_end_early_is_given_up_without_blame(self) -> None:
        task, pid = self.hang("--late-seconds", "0.5", seconds=120.0)
        task.order = "finish"  # type: ignore[attr-defined]
        got = self.result(self.wait(task))  # type: ignore[arg-type]
        self.assertEqual((got["steps"], "path" in got), (0, False))
        self.assertFalse(alive(pid))

    def test_a_call_that_does_not_fit_is_not_begun(self) -> None:
        self.run_app()
        self.result(self.do())
        assert self.runner is not None
        self.runner._session._pace.took(1000.0)
        self.runner._session._pace._recent.popleft()
        self.assertEqual(self.result(self.do())["steps"], 0)
        self.runner._session._pace.took(0.5)  # a later call was fast
        self.assertEqual(self.result(self.do())["steps"], 1)

    def test_a_corpus_that_the_federation_counts_is_refused_before_the_call(self) -> None:
        self.run_app()
        task = self.wait(self.give(data=[{"begin": 0, "end": 10}]))
        self.assertRegex(str(task.failure), "leave spec.data out for Flower apps")
        self.assertEqual(self.result(self.do())["metrics"]["calls"], 1)

    def test_first_weights_and_config_are_heard_of_the_serverapp(self) -> None:
        self.agent.want_seed()
        self.run_app(server=True)
        self.agent.wait(lambda a: a.seeds or self.error, PATIENCE)
        self.assertTrue(self.agent.seeds, self.error)
        seed = safetensors.load(self.agent.seeds[0], framework="buffers")
        got = {n: (t.dtype, t.shape, t.values()[0]) for n, t in seed.items()}
        self.assertEqual(got, {"w1": ("F32", (), 0.0), "w2": ("F32", (2, 3), 1.0)})
        metrics = self.result(self.do())["metrics"]
        self.assertEqual((metrics["seen.config"], metrics["seen.mu"], metrics["seen.round"]), (0.5, 0.25, 1))

    def test_first_weights_are_made_of_what_the_command_names(self) -> None:
        import numpy

        with open(os.path.join(self.app, "app", "task.py"), "w") as f:
            f.write("import numpy as np\ndef make():\n    return {'b': np.ones(2, np.float32), 'a': np.float32(3)}\n")
        numpy.savez(self.path("w.npz"), b=numpy.ones(2, numpy.float32), a=numpy.float32(3))
        for what in ("app.task:make", self.path("w.npz")):
            with self.subTest(what):
                self.agent.seeds.clear()
                self.agent.want_seed()
                self.run_app("--initial", what)
                self.agent.wait(lambda a: a.seeds or self.error, PATIENCE)
                self.assertTrue(self.agent.seeds, self.error)
                seed = safetensors.load(self.agent.seeds[0], framework="buffers")
                self.assertEqual({n: (t.shape, t.values()) for n, t in seed.items()}, {"a": ((), [3.0]), "b": ((2,), [1.0, 1.0])})
                self.stop()

    @unittest.skipUnless(TORCH, "torch is not installed")
    def test_first_weights_of_a_torch_module_tell_its_buffers(self) -> None:
        with open(os.path.join(self.app, "app", "task.py"), "w") as f:
            f.write(
                "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.z = torch.nn.Linear(2, 3).to(torch.bfloat16)\n        self.register_buffer('scale', torch.ones(()))\n"
            )
        self.agent.want_seed()
        self.run_app("--initial", "app.task:Net")
        self.agent.wait(lambda a: a.seeds or self.error, PATIENCE)
        self.assertTrue(self.agent.seeds, self.error)
        with safetensors.File(self.agent.seeds[0]) as seed:
            self.assertEqual(seed.metadata, {"girassol.buffers": "scale"})
            self.assertEqual({n: str(s) for n, s in seed.specs.items()}, {"z.weight": "BF16 [3, 2]", "z.bias": "BF16 [3]", "scale": "F32 []"})

    def test_an_app_that_does_not_load_is_refused_with_the_reason(self) -> None:
        for what, client, want in (
            ("raises", "raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
            ("exits", "import sys; sys.exit(4)", "SystemExit: 4"),
            ("dies", "import os; os._exit(9)", "ended with status 9 in open"),
            ("no app", "", "app.client has no app"),
            ("another thing", "app = 1", "is a int, no flwr.clientapp.ClientApp"),
            ("lacks a package", "import not_there", "No module named 'not_there'"),
        ):
            with self.subTest(what):
                self.app = write_app(os.path.join(self.dir, what.replace(" ", "")), client)
                with self.assertRaisesRegex(FlowerError, want):
                    Runner(self.options()).run()
        self.app = write_app(os.path.join(self.dir, "moved"))
        os.rename(os.path.join(self.app, "app", "client.py"), os.path.join(self.app, "app", "other.py"))
        with self.assertRaisesRegex(FlowerError, "there is no module app.client"):
            Runner(self.options()).run()

    def test_an_old_or_missing_flwr_is_named(self) -> None:
        for text, want in (
            ("__version__ = '1.20.0'", "flwr 1.20.0 is too old: install it for .*flwr>=1.21"),
            ("raise ImportError('x')", "flwr is not there"),
        ):
            folder = os.path.join(self.dir, want.split()[1])
            os.makedirs(os.path.join(folder, "flwr"))
            with open(os.path.join(folder, "flwr", "__init__.py"), "w") as f:
                f.write(text)
            os.environ["PYTHONPATH"] = folder + os.pathsep + os.environ["PYTHONPATH"]
            with self.subTest(text), self.assertRaisesRegex(FlowerError, want):
                Runner(self.options()).run()

    def test_two_processes_do_not_share_a_state_folder(self) -> None:
        self.run_app()
        self.result(self.do())
        with self.assertRaisesRegex(FlowerError, "used by another process.*--state"):
            Runner(self.options()).run()


class Legacy(FlowerCase):
    client = LEGACY

    def test_first_weights_training_and_evaluation_by_position(self) -> None:
        self.agent.want_seed()
        self.run_app()
        self.agent.wait(lambda a: a.seeds or self.error, PATIENCE)
        self.assertTrue(self.agent.seeds, self.error)
        os.replace(self.agent.seeds[0], self.path("model.safetensors"))
        got = self.result(self.do())
        self.assertEqual((got["samples"], got["loss"]), (3, 0.5))
        # Twelve arrays in order: "10" does not come after "1".
        self.assertEqual({k: v for k, v in got["metrics"].items() if "second" not in k}, {"first": 2.0, "loss": 0.5, "truth": 1.0})
        trained = safetensors.load(got["path"], framework="buffers")
        self.assertEqual([trained[str(i)].shape for i in range(4)], [(2, 3), (4,), (), (1,)])
        self.assertTrue(all(v == 1.0 for t in trained.values() for v in t.values()))
        got = self.result(self.do("evaluate"))
        self.assertEqual((got["loss"], got["samples"], got["metrics"]["accuracy"]), (0.0, 4, 0.5))
        for mode, want in (
            ("short", "fit returned 11 arrays, it was given 12"),
            ("order", r"0: has shape \[1\], want \[2, 3\].*Positions count"),
            ("zero", "num_examples is 0"),
            ("negative", "num_examples is -1"),
        ):
            with self.subTest(mode):
                self.assertRegex(str(self.do(mode=mode).failure), want)

    def test_names_need_the_order_of_the_model(self) -> None:
        names = ["z", "a"] + [f"n{i}" for i in range(10)]
        shapes = [(2, 3), (4,)] + [(1,)] * 10
        self.write_model({n: Tensor.of("F32", s, [0.0] * (s[0] * (s[1:] or (1,))[0])) for n, s in zip(names, shapes)})
        self.run_app()
        self.assertRegex(str(self.do().failure), "knows positions only: name the model .*--initial")
        self.stop()
        with open(os.path.join(self.app, "app", "task.py"), "w") as f:
            f.write(f"import numpy as np\ndef make():\n    return {{n: np.zeros(s, np.float32) for n, s in zip({names}, {shapes})}}\n")
        self.run_app("--initial", "app.task:make")
        got = self.result(self.do())
        self.assertEqual(got["metrics"]["first"], 2.0)
        self.assertEqual(safetensors.load(got["path"], framework="buffers")["z"].shape, (2, 3))

    def test_without_get_parameters_it_waits_for_another_site_and_says_so(self) -> None:
        self.app = write_app(os.path.join(self.dir, "bare"), LEGACY.replace("def get_parameters", "def other"))
        self.agent.want_seed()
        with self.assertLogs("girassol.flower", "ERROR") as logged:
            self.run_app()
            self.assertRegex(str(self.do().failure), "knows positions only")
        self.assertRegex(logged.output[0], "get_parameters, or give --initial .*does not implement")
        self.assertEqual(self.agent.seeds, [])

    @unittest.skipUnless(REAL, "the stand-in for flwr has no server_fn")
    def test_config_is_heard_of_a_server_fn(self) -> None:
        with open(os.path.join(self.app, "app", "server.py"), "w") as f:
            f.write(
                "from flwr.server import ServerApp, ServerAppComponents, ServerConfig\nfrom flwr.server.strategy import FedAvg\n"
                "def server_fn(context):\n"
                "    strategy = FedAvg(on_fit_config_fn=lambda r: {'mode': 'short', 'current_round': r})\n"
                "    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))\n"
                "app = ServerApp(server_fn=server_fn)\n"
            )
        self.agent.want_seed()
        self.run_app(server=True)
        self.agent.wait(lambda a: a.seeds or self.error, PATIENCE)
        self.assertTrue(self.agent.seeds, self.error)
        os.replace(self.agent.seeds[0], self.path("model.safetensors"))
        self.assertRegex(str(self.do().failure), "fit returned 11 arrays")


class Processes(FlowerCase):
    def command(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "girassol", "flower", "--app", self.app, "--no-serverapp", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ),
        )  # fmt: skip
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def hang(self, *arguments: str) -> tuple[object, subprocess.Popen[str], int]:
        process, pid = self.command(*arguments), self.path("pid")
        task = self.give("train", 120.0, config={"mode": '"hang"', "pid": f'"{pid}"'})
        self.agent.wait(lambda _: (os.path.exists(pid) and contents(pid) != b"") or process.poll() is not None, PATIENCE)
        self.assertTrue(os.path.exists(pid))
        return task, process, int(contents(pid))

    def gone(self, pid: int) -> bool:
        end = time.monotonic() + PATIENCE
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.05)
        return not alive(pid)

    def test_sigterm_ends_a_call_that_does_not_return(self) -> None:
        task, process, pid = self.hang("--drain-seconds", "0.5")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("cannot be asked to stop in mid-call", out)
        self.assertEqual(self.result(task)["steps"], 0)  # type: ignore[arg-type]
        self.assertTrue(self.gone(pid))

    def test_the_child_ends_with_a_killed_parent(self) -> None:
        _, process, pid = self.hang()
        process.kill()
        self.assertTrue(self.gone(pid))

    def test_an_app_that_cannot_run_ends_the_command_with_1_and_the_reason(self) -> None:
        self.app = write_app(os.path.join(self.dir, "bad"), CLIENT.replace("import numpy as np", "import no_such_package"))
        process = self.command()
        out, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1)
        self.assertIn("No module named 'no_such_package'", out)

    @unittest.skipUnless(os.path.isdir(EXAMPLE), "not in a checkout of the repository")
    def test_the_example_passes_its_check(self) -> None:
        command = [sys.executable, "-m", "girassol", "flower", "--app", EXAMPLE, "--node-config", "partition-id=0", "num-partitions=2"]
        done = subprocess.run([*command, "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("this script is ready for a federation", done.stdout)


if __name__ == "__main__":
    unittest.main()
