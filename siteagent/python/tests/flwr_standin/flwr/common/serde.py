"""Contexts as bytes."""

from __future__ import annotations

from typing import Any

from ..app import Context
from ..proto.message_pb2 import Context as Proto


def context_to_proto(context: Context) -> Any:
    proto = Proto()
    proto.context = context
    return proto


def context_from_proto(proto: Any) -> Context:
    return proto.context
