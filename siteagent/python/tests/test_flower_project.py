"""Projects, arguments and the state's file: no flwr is needed."""

from __future__ import annotations

import contextlib
import io
import os
import random
import unittest

from .flower import PYPROJECT, write_app
from .rig import Case, contents

from girassol.flower import _command, _project, _state
from girassol.flower._errors import FlowerError

try:
    _project.parse_value("1")
    TOML = True
except ImportError:
    TOML = False


@unittest.skipUnless(TOML, "Python 3.10 has no tomllib; tomli comes with flwr")
class Project(Case):
    def test_an_app_is_read_with_its_flat_run_config(self) -> None:
        project = _project.read(write_app(self.path("app")))
        self.assertEqual((project.client_app, project.server_app), ("app.client:app", "app.server:app"))
        self.assertEqual(project.run_config, {"amount": 0.5, "name": "n", "nested.key": 1})

    def test_what_is_no_app_is_refused_with_the_cure(self) -> None:
        for what, old, new, want in (
            ("no clientapp", 'clientapp = "app.client:app"', "", 'has no clientapp, want clientapp = "package.module:app"'),
            ("no reference", "app.client:app", "app.client", "clientapp = 'app.client', want"),
            ("a path", "app.server:app", "../server:app", "serverapp = '../server:app', want"),
            ("no section", "tool.flwr.app", "tool.other", r"no section \[tool.flwr.app\]"),
            ("no TOML", "[project]", "[project", "pyproject.toml: "),
            ("no table", "[tool.flwr.app]\npublisher", "[tool.flwr]\napp = 1\n[x]\npublisher", "pyproject.toml: "),
            ("a list", "amount = 0.5", "amount = [1]", "config amount is a list"),
            ("a date", "amount = 0.5", "amount = 2020-01-01", "config amount is a date"),
        ):
            with self.subTest(what):
                self.assertIn(old, PYPROJECT)
                folder = write_app(self.path(what), pyproject=PYPROJECT.replace(old, new))
                with self.assertRaisesRegex(FlowerError, want):
                    _project.read(folder)
        with self.assertRaisesRegex(FlowerError, "--app"):
            _project.read(self.path("nowhere"))

    def test_overrides_are_of_known_keys_and_their_types(self) -> None:
        config: _project.Config = {"lr": 0.1, "epochs": 2, "name": "x", "deep.flag": False}
        changes = _project.parse_pairs("--run-config", ["lr=1 epochs=3", "name='a b'", "deep.flag=true"])
        self.assertEqual(_project.overridden(config, changes), {"lr": 1.0, "epochs": 3, "name": "a b", "deep.flag": True})
        for text, want in (
            ("lrr=1", "no such key; .* has deep.flag, epochs, lr, name"),
            ("epochs=0.5", "is a number, the app's own value 2 is a whole number"),
            ("epochs=true", "is a truth"),
            ('lr="0,1"', "is a text"),
        ):
            with self.subTest(text), self.assertRaisesRegex(FlowerError, want):
                _project.overridden(config, _project.parse_pairs("--run-config", [text]))

    def test_pairs_are_written_as_for_flwr_run(self) -> None:
        for texts, want in (
            ([], {}),
            (["a=1 b=0.5  c=true"], {"a": 1, "b": 0.5, "c": True}),
            (['a="x y" b=\'z=1\''], {"a": "x y", "b": "z=1"}),
            (["a=1", "a=2"], {"a": 2}),
            (["partition-id=0"], {"partition-id": 0}),
        ):
            with self.subTest(texts):
                self.assertEqual(_project.parse_pairs("-x", texts), want)
        for text, want in (
            ("a", "want NAME=VALUE"),
            ("a=b", 'in quotes: -x \'a="b"\''),
            ("a=[1]", "in quotes"),
            ("a=1 b", "want NAME"),
            ("x.toml", "x.toml"),
        ):
            with self.subTest(text), self.assertRaisesRegex(FlowerError, want):
                _project.parse_pairs("-x", [text])
        with open(self.path("c.toml"), "w") as f:
            f.write("a = 1\n[b]\nc = 'x'\n")
        self.assertEqual(_project.parse_pairs("-x", [self.path("c.toml")]), {"a": 1, "b.c": "x"})

    def test_any_text_is_parsed_or_refused(self) -> None:
        dice = random.Random(1)
        for _ in range(3000):
            text = "".join(dice.choice("ab=\"' 1.\n[]#\\,") for _ in range(dice.randrange(12)))
            with contextlib.suppress(FlowerError):
                for value in _project.parse_pairs("-x", [text]).values():
                    self.assertIsInstance(value, (bool, int, float, str))

    def test_the_command_says_what_is_wrong_and_ends_with_1(self) -> None:
        app = write_app(self.path("app"))
        for arguments, want in (
            ([], "GIRASSOL_TRAINER_WORKDIR is not set: let the agent start this command"),
            (["--run-config", "nope=1"], "nope: the app has no such key"),
            (["--initial", "app.task"], "want package.module:name"),
            (["--initial", "none.npz"], "there is no such file"),
            (["--late-seconds", "-1"], "want seconds above 0"),
            (["--node-config", "partition-id"], "want NAME=VALUE"),
        ):
            with self.subTest(arguments), contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(_command.main(["--app", app, *arguments]), 1)
                self.assertIn(want, err.getvalue())


class State(Case):
    def test_it_comes_back_as_it_was(self) -> None:
        path = self.path("state")
        self.assertIsNone(_state.load(path))
        for data in (b"", b"\n\0x" * 1000, b"y"):
            _state.save(path, data)
            self.assertEqual(_state.load(path), data)
        self.assertEqual(os.listdir(self.work), ["state"])

    def test_any_damage_is_noticed(self) -> None:
        path = self.path("state")
        _state.save(path, b"memory" * 20)
        good = contents(path)
        dice = random.Random(2)
        damaged = [good[:n] for n in range(0, len(good), 7)] + [good + b"x", b"\xff" * 300]
        for _ in range(100):
            at = dice.randrange(len(good))
            damaged.append(good[:at] + bytes([good[at] ^ (1 << dice.randrange(8))]) + good[at + 1 :])
        for data in damaged:
            with open(path, "wb") as f:
                f.write(data)
            if data.split() == good.split():  # another blank in the first line
                continue
            with self.assertRaisesRegex(FlowerError, "--damaged-state anew"):
                _state.load(path)

    def test_set_aside_never_overwrites(self) -> None:
        names = set()
        for _ in range(3):
            _state.save(self.path("state"), b"x")
            names.add(_state.set_aside(self.path("state")))
        self.assertEqual(len(names), 3)
        self.assertEqual(len(os.listdir(self.work)), 3)


if __name__ == "__main__":
    unittest.main()
