"""A Flower app's pyproject.toml and the key=value arguments of the command.

It owns Flower's rules for configurations: flat names with dots, four types of
values, overrides of known keys only. It must not import flwr.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

from ._errors import FlowerError

__all__ = ["Config", "Project", "overridden", "parse_pairs", "parse_value", "read"]

Config = dict[str, Union[bool, int, float, str]]

_MAX_FILE = 1 << 20
_PAIR = re.compile(r"""\s*([^\s=]+)=("[^"]*"|'[^']*'|\S+)""")
_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


class Project(NamedTuple):
    """What a pyproject.toml says of a Flower app."""

    folder: str
    """Absolute."""
    client_app: str
    """As module:attribute."""
    server_app: str
    """The same; empty where there is none."""
    run_config: Config
    """Flat."""


def read(folder: str) -> Project:
    """The app in ``folder``; FlowerError where it is none."""
    folder = os.path.abspath(folder)
    path = os.path.join(folder, "pyproject.toml")
    try:
        with open(path, "rb") as f:
            data = f.read(_MAX_FILE + 1)
    except OSError as e:
        raise FlowerError(f"{path}: {e.strerror}: give the folder of a Flower app with --app") from None
    if len(data) > _MAX_FILE:
        raise FlowerError(f"{path}: more than {_MAX_FILE} bytes")
    try:
        document = _toml(data.decode("utf-8"))
    except ValueError as e:
        raise FlowerError(f"{path}: {e}") from None
    app = _table(_table(_table(document, "tool", path), "flwr", path), "app", path)
    if not app:
        raise FlowerError(f"{path}: no section [tool.flwr.app], so this is no Flower app")
    components = _table(app, "components", path)
    if "clientapp" not in components:
        raise FlowerError(f'{path}: [tool.flwr.app.components] has no clientapp, want clientapp = "package.module:app"')
    references = []
    for name in ("clientapp", "serverapp"):
        value = components.get(name, "")
        if not isinstance(value, str) or (value or name == "clientapp") and not _REFERENCE.fullmatch(value):
            raise FlowerError(f'{path}: {name} = {value!r}, want "package.module:app"')
        references.append(value)
    return Project(folder, references[0], references[1], _flat(_table(app, "config", path), path))


def overridden(config: Config, changes: Config) -> Config:
    """A run-config with changes of keys that it has, of the types that it has."""
    out = dict(config)
    for key, value in changes.items():
        if key not in out:
            raise FlowerError(
                f"--run-config {key}: the app has no such key; [tool.flwr.app.config] has {', '.join(sorted(out)) or 'none'}"
            )
        old = out[key]
        if isinstance(old, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(old):
            raise FlowerError(f"--run-config {key}={value!r}: is {_kind(value)}, the app's own value {old!r} is {_kind(old)}")
        out[key] = value
    return out


def parse_pairs(flag: str, texts: Iterable[str]) -> Config:
    """Arguments such as ``a.b=1 name="x"``, one or several pairs each, or a TOML file."""
    out: Config = {}
    for text in texts:
        if text.endswith(".toml") and "=" not in text:
            try:
                with open(text, "rb") as f:
                    out.update(_flat(_toml(f.read(_MAX_FILE).decode("utf-8")), text))
            except (OSError, ValueError) as e:
                raise FlowerError(f"{flag} {text}: {e}") from None
            continue
        at = 0
        while text[at:].strip():
            m = _PAIR.match(text, at)
            if m is None:
                raise FlowerError(f"{flag} {text!r}: want NAME=VALUE, with several in one argument apart by spaces")
            at = m.end()
            try:
                out[m[1]] = parse_value(m[2])
            except ValueError:
                raise FlowerError(
                    f"{flag} {m[1]}={m[2]}: values are written as in TOML: 1, 0.5, true or text in quotes: {flag} '{m[1]}=\"{m[2]}\"'"
                ) from None
    return out


def parse_value(text: str) -> bool | int | float | str:
    """A value as TOML writes it; ValueError for anything else."""
    value = _toml(f"v = {text}\n")
    if list(value) != ["v"] or not isinstance(value["v"], (bool, int, float, str)):
        raise ValueError("no number, truth or text")
    return value["v"]


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # flwr needs it too
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
    return document


def _table(document: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise FlowerError(f"{path}: {name} is no table")
    return value


def _flat(table: Mapping[str, Any], path: str, prefix: str = "") -> Config:
    out: Config = {}
    for key, value in table.items():
        if isinstance(value, dict):
            out.update(_flat(value, path, f"{prefix}{key}."))
        elif isinstance(value, (bool, int, float, str)):
            out[prefix + key] = value
        else:
            raise FlowerError(f"{path}: config {prefix}{key} is a {type(value).__name__}; Flower takes numbers, truths and texts")
    return out


def _kind(value: object) -> str:
    return {bool: "a truth", int: "a whole number", float: "a number", str: "a text"}[type(value)]
