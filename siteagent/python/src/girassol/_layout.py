"""Whether submitted weights are the model that the round began with, and what
to do when they are not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ._tensor import Spec, bytes_of, decode, is_numpy, is_torch, spec_of
from .errors import FormatError, LayoutError, NonFiniteError
from .safetensors import File

_SHOW = 8
_SAMPLE = 256


def specs_of(tensors: Mapping[str, Any]) -> dict[str, Spec]:
    """Type and shape of each, or a LayoutError that lists what is no tensor."""
    if not isinstance(tensors, Mapping):
        cure = "; submit model.state_dict()" if hasattr(tensors, "state_dict") else ""
        raise LayoutError(f"a state dict is wanted (names to tensors), not a {type(tensors).__name__}{cure}", [])
    out, bad = {}, []
    for name, value in tensors.items():
        try:
            out[name] = spec_of(value)
        except FormatError as e:
            bad.append(f"{name}: {e}")
    if bad:
        raise LayoutError("the state dict does not travel: " + _list(bad), bad)
    return out


def check_layout(have: Mapping[str, Spec], want: Mapping[str, Spec]) -> None:
    """Same names and shapes; floats may be of another width, the rest not."""
    found: dict[str, str] = {}
    for name, w in want.items():
        h = have.get(name)
        if h is None:
            found[name] = f"{name}: missing (want {w})"
        elif h.shape != w.shape:
            found[name] = f"{name}: has shape {list(h.shape)}, want {list(w.shape)}"
        elif h.dtype != w.dtype and not (h.is_float and w.is_float):
            found[name] = f"{name}: is {h.dtype}, want {w.dtype}"
    for name, h in have.items():
        if name not in want:
            found[name] = f"{name}: unknown ({h})"
    if found:
        differences = [found[name] for name in sorted(found)]
        raise LayoutError(
            f"the weights are not this round's model: {_list(differences)}. {_cure(have, want)}", differences
        )


def _list(lines: list[str]) -> str:
    more = [f"and {len(lines) - _SHOW} more"] if len(lines) > _SHOW else []
    return "; ".join(lines[:_SHOW] + more)


def _cure(have: Mapping[str, Spec], want: Mapping[str, Spec]) -> str:
    missing, unknown = want.keys() - have.keys(), have.keys() - want.keys()
    for prefix, wrapper in (("module.", "model.module.state_dict()"), ("_orig_mod.", "model._orig_mod.state_dict()")):
        if missing and missing == {n.replace(prefix, "") for n in unknown}:
            return f"The names have {prefix!r} of a wrapper in them: submit {wrapper}"
    crossed = sorted(n for n in have.keys() & want.keys() if have[n].shape != want[n].shape)
    for i, a in enumerate(crossed):
        for b in crossed[i + 1 :]:
            if have[a].shape == want[b].shape and have[b].shape == want[a].shape:
                return f"Are {a} and {b} swapped?"
    if missing and unknown and sorted(want[n].shape for n in missing) == sorted(have[n].shape for n in unknown):
        return "Are they renamed? Names must stay those of round.state_dict()"
    if missing and not unknown and len(missing) < len(want):
        return "Submit the whole state_dict(), with buffers and frozen tensors, not only what was trained"
    return "Build the model with the settings of the site that gave the first weights"


def check_finite(tensors: Mapping[str, Any]) -> None:
    """Refuse NaN and infinities, naming the tensors. No copy is made of them."""
    bad = [name for name, value in tensors.items() if not _finite(value)]
    if bad:
        raise NonFiniteError(
            f"not finite (NaN or infinite): {_list(sorted(bad))}. Lower the learning rate, clip gradients, "
            "or skip steps whose loss is not finite"
        )


def _finite(value: Any) -> bool:
    spec = spec_of(value)
    if not spec.is_float or spec.elements == 0:
        return True
    if is_torch(value):
        import torch

        t = value.detach()
        try:
            low, high = torch.aminmax(t)  # no temporary; NaN wins
        except (RuntimeError, NotImplementedError):
            return bool(torch.isfinite(t).all())
        return math.isfinite(float(low)) and math.isfinite(float(high))
    if is_numpy(value):
        return math.isfinite(float(value.min())) and math.isfinite(float(value.max()))
    data, _owner = bytes_of(value)
    if spec.dtype in ("F32", "F64"):
        block = 1 << 20
        for at in range(0, data.nbytes, block):
            part = data[at : at + block]
            numbers = part.cast("f") if spec.dtype == "F32" else part.cast("d")
            # A finite sum has finite terms; adding is faster than asking each.
            if not math.isfinite(sum(numbers)) and not all(map(math.isfinite, numbers)):
                return False
        return True
    exponent = 0x7F80 if spec.dtype == "BF16" else 0x7C00
    return all(bits & exponent != exponent for bits in data.cast("H"))


def check_swapped(tensors: Mapping[str, Any], start: File) -> None:
    """Refuse two tensors of one shape that stand in each other's place: each is
    far from where it began and close to where the other did. Looks at samples."""
    moved: dict[tuple[int, ...], list[tuple[str, list[float], list[float], float]]] = {}
    for name, spec in start.specs.items():
        if not spec.is_float or spec.elements < 16:
            continue
        began, now = _sample(start.tensor(name)), _sample(tensors[name])
        distance = _distance(began, now)
        if distance > 0.25 * math.sqrt(sum(v * v for v in began)):
            moved.setdefault(spec.shape, []).append((name, began, now, distance))
    for same in moved.values():
        for i, (a, began_a, now_a, far_a) in enumerate(same):
            for b, began_b, now_b, far_b in same[i + 1 :]:
                if _distance(now_a, began_b) < 0.25 * far_a and _distance(now_b, began_a) < 0.25 * far_b:
                    text = f"{a} and {b} stand in each other's place"
                    raise LayoutError(
                        f"the weights are not this round's model: {text}. Names must stay those of round.state_dict()",
                        [text],
                    )


def _sample(value: Any) -> list[float]:
    spec = spec_of(value)
    n = min(_SAMPLE, spec.elements)
    if is_torch(value):
        flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach().contiguous().reshape(-1)
        return [float(v) for v in flat[:: max(1, spec.elements // n)][:n].float().cpu().tolist()]
    if is_numpy(value):
        return [float(v) for v in value.reshape(-1)[:: max(1, spec.elements // n)][:n]]
    data, _owner = bytes_of(value)
    size, stride = spec.nbytes // spec.elements, max(1, spec.elements // n)
    picked = bytearray()
    for i in range(n):
        picked += data[i * stride * size : (i * stride + 1) * size]
    return decode(spec.dtype, memoryview(picked))


def _distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
