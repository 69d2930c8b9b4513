"""What can go wrong, in classes that a script may catch.

Every message names the cure where there is one.
"""

from __future__ import annotations


class GirassolError(Exception):
    """Base of all errors of this package."""


class UsageError(GirassolError):
    """The script uses the package in a way that cannot work."""


class FormatError(GirassolError, ValueError):
    """A file is no safetensors file, or a value does not fit into one."""


class LayoutError(GirassolError):
    """Submitted weights are not the model that the round began with.

    ``differences`` has one line per tensor, in name order.
    """

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences


class NonFiniteError(GirassolError, ArithmeticError):
    """Weights or losses are NaN or infinite."""


class AgentError(GirassolError):
    """The agent cannot be reached on its socket, or broke off."""


class RefusedError(AgentError):
    """The agent answered with an error.

    ``status`` is the HTTP status, ``problem`` the agent's words.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(f"the agent refuses ({status}): {problem}")
        self.status = status
        self.problem = problem
