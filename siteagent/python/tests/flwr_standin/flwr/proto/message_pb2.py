"""One message, in a format of its own (pickle, for tests only)."""

from __future__ import annotations

import pickle


class Context:
    context: object = None

    def SerializeToString(self) -> bytes:  # noqa: N802
        return pickle.dumps(self.context)

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802
        self.context = pickle.loads(data)
