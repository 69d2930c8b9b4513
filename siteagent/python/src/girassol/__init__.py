"""Girassol's trainer SDK: train in a federation from your own script.

See :class:`Session`; ``python -m girassol check SCRIPT`` tries a script out.
"""

from .data import Data, DataRange
from .errors import (
    AgentError,
    FormatError,
    GirassolError,
    LayoutError,
    NonFiniteError,
    RefusedError,
    UsageError,
)
from .round import Action, Round
from .safetensors import Tensor
from .session import Session

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AgentError",
    "Data",
    "DataRange",
    "FormatError",
    "GirassolError",
    "LayoutError",
    "NonFiniteError",
    "RefusedError",
    "Round",
    "Session",
    "Tensor",
    "UsageError",
]
