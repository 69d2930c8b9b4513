"""Arrays and metrics between Flower's records and this package's files.

Arrays go by name. Flower carries them as numpy does, which has no bfloat16:
such tensors are widened to float32 for the app, which loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from .. import _layout, safetensors
from ..errors import LayoutError
from ..safetensors import File, Spec, Tensor
from ._errors import FlowerError

__all__ = ["array_record", "check", "in_order", "loss_of", "num_examples", "numbers", "positional", "tensors", "write"]

_LOSSES = ("loss", "eval_loss", "eval-loss", "val_loss", "val-loss", "test_loss", "test-loss", "train_loss", "train-loss")
_NUMPY = "numpy.ndarray"


def positional(names: Iterable[str]) -> bool:
    """Whether names are positions: 0, 1, 2 and so on."""
    found = set(names)
    return found == {str(i) for i in range(len(found))}


def in_order(names: Sequence[str], known: Sequence[str] | None) -> list[str] | None:
    """Names in the app's own order, as far as it is known. Files do not keep it."""
    if known is not None and len(known) == len(names) and set(known) == set(names):
        return list(known)
    return sorted(names, key=int) if positional(names) else None


def array_record(app: ModuleType, file: File, names: Mapping[str, str]) -> Any:
    """An ArrayRecord of a file's tensors; names: in the record, and in the file."""
    return app.ArrayRecord({name: app.Array(_numpy(file, stored)) for name, stored in names.items()})


def _numpy(file: File, name: str) -> Any:
    spec = file.specs[name]
    if spec.dtype != "BF16":
        return file.numpy(name)
    import numpy

    bits = numpy.frombuffer(file.buffer(name), dtype=numpy.uint16).astype(numpy.uint32)
    return (bits << 16).view(numpy.float32).reshape(spec.shape)


def tensors(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's arrays, ready for a safetensors file."""
    out = {}
    for name, array in record.items():
        if not array.data:  # legacy Parameters without arrays have one of these
            continue
        if array.stype != _NUMPY:
            raise FlowerError(f"array {name!r} is serialized as {array.stype!r}, want {_NUMPY!r}: give arrays or tensors")
        try:
            value = array.numpy()
        except (ValueError, EOFError) as e:
            raise FlowerError(f"array {name!r} cannot be read: {e}") from None
        if value.dtype.kind == "V" and array.dtype == "bfloat16":  # of ml_dtypes
            value = Tensor("BF16", value.shape, value.tobytes())
        out[name] = value
    return out


def check(arrays: Mapping[str, Any], start: File) -> None:
    """That trained arrays are the model that the round began with, and finite."""
    have = _layout.specs_of(arrays)
    try:
        _layout.check_layout(have, start.specs)
        _layout.check_swapped(arrays, start)
    except LayoutError as e:
        hint = ""
        if any(_became_float(have.get(name), spec) for name, spec in start.specs.items()):
            hint = ". Cast arrays of whole numbers back to their type before they are returned"
        elif positional(start.specs):
            hint = ". Positions count: return as many arrays, in the same order, as at the site that gave the first weights"
        raise LayoutError(f"the ClientApp returned other arrays than it was given: {e}{hint}", e.differences) from None
    _layout.check_finite(arrays)


def _became_float(have: Spec | None, want: Spec) -> bool:
    return have is not None and have.is_float and not want.is_float


def num_examples(metrics: Mapping[str, Any], key: str) -> int:
    """The update's weight, a positive whole number; FlowerError otherwise."""
    if key not in metrics:
        raise FlowerError(
            f"the reply's MetricRecord has no {key!r}, which is the update's weight in the merge; it has "
            f"{', '.join(sorted(metrics)) or 'nothing'}. Return MetricRecord({{{key!r}: len(dataset), ...}}), or name another: "
            "--weighted-by NAME"
        )
    value = metrics[key]
    if isinstance(value, (list, str, bytes)) or not math.isfinite(value) or value <= 0 or value != int(value):
        raise FlowerError(
            f"{key} is {value!r}: it is the update's weight in the merge and must be a positive whole number. "
            "Return the number of samples that were trained or evaluated on; a site without data does not take part"
        )
    return int(value)


def loss_of(metrics: Mapping[str, Any], name: str | None) -> float | None:
    """The loss among metrics: the named one, or one of the usual names."""
    for candidate in (name,) if name else _LOSSES:
        value = metrics.get(candidate)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def numbers(metrics: Mapping[str, Any], but: str = "") -> dict[str, float]:
    """Those of the metrics that are finite single numbers."""
    out = {}
    for name, value in metrics.items():
        if name != but and isinstance(value, (bool, int, float)) and math.isfinite(value):
            out[name] = float(value)
    return out


def write(path: str, arrays: Mapping[str, Any], buffers: Iterable[str] = ()) -> None:
    """First weights as a file; refused where they do not travel or are not finite."""
    specs = _layout.specs_of(arrays)
    _layout.check_finite(arrays)
    floats = [n for n in buffers if n in specs and specs[n].is_float]
    safetensors.save(path, arrays, {"girassol.buffers": ",".join(floats)} if floats else None)
