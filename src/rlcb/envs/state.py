"""Saves and restores Gymnasium environments whose state is plain data, so that runs resume in mid-episode.

A wrapper may take care of other attributes of the environment inside it: `covers` are their names, and
`after_restore` is called when everything else is restored (envs/atari.py).
"""

from __future__ import annotations

import base64
import logging
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

_PLAIN = (type(None), bool, int, float, str)
# Attributes of these types do not change while an environment steps, so they are not saved.
_CONSTANT = (
    gymnasium.Space,
    EnvSpec,
    type,
    logging.Logger,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
)


class OpaqueState(Exception):
    """An attribute is neither plain data nor known to be constant, so the environment cannot be saved."""


def capture(env: gymnasium.Env[Any, Any]) -> list[dict[str, Any]]:
    """Return the attributes of an environment and of its wrappers, outermost first, as plain values.

    Saves numbers, strings, arrays, random generators and containers of them. Raises OpaqueState, naming the
    attribute, if there is anything else, such as the world of a physics engine or an emulator.
    """
    layers, skipped = [], {"env", "metadata"}
    while True:
        skipped.update(getattr(type(env), "covers", ()))
        layers.append(
            {
                name: _encode(value, f"{type(env).__name__}.{name}")
                for name, value in vars(env).items()
                if name not in skipped and not isinstance(value, _CONSTANT)
            }
        )
        if not isinstance(env, gymnasium.Wrapper):
            return layers
        env = env.env


def restore(env: gymnasium.Env[Any, Any], layers: list[dict[str, Any]]) -> None:
    """Restore what `capture` returned in an environment with the same wrappers.

    Raises ValueError if there are more saved layers than wrappers.
    """
    finish: list[Callable[[], None]] = []
    for index, layer in enumerate(layers):
        if index:
            if not isinstance(env, gymnasium.Wrapper):
                raise ValueError("the saved state has more wrappers than the environment")
            env = env.env
        for name, value in layer.items():
            vars(env)[name] = _decode(value)
        if hasattr(type(env), "covers"):
            finish.append(env.after_restore)  # type: ignore[attr-defined]
    for each in finish:
        each()


def _encode(value: Any, name: str) -> Any:
    """Return a value in the form that JSON can store. Raises OpaqueState with `name` if it has none."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {
            "kind": "array",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": base64.b64encode(value.tobytes()).decode(),
        }
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"kind": "scalar", "dtype": value.dtype.str, "data": value.item()}
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return {"kind": "generator", "name": type(bits).__name__, "state": _encode(bits.state, name)}
    # Exact types only: a subclass, such as a named tuple, would not be restored as that subclass.
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "items": [_encode(item, name) for item in value]}
    if type(value) is deque:
        return {"kind": "deque", "maxlen": value.maxlen, "items": [_encode(item, name) for item in value]}
    if type(value) is dict:
        return {
            "kind": "dict",
            "items": [[_encode(key, name), _encode(item, name)] for key, item in value.items()],
        }
    raise OpaqueState(name)


def _decode(value: Any) -> Any:
    """Return the value that `_encode` encoded."""
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "array":
        data, dtype = value["data"], np.dtype(value["dtype"])
        # Checkpoints of earlier versions have lists of numbers.
        flat = (
            np.frombuffer(base64.b64decode(data), dtype) if isinstance(data, str) else np.array(data, dtype)
        )
        return flat.reshape(value["shape"]).copy()
    if kind == "scalar":
        return np.dtype(value["dtype"]).type(value["data"])
    if kind == "generator":
        bits = getattr(np.random, value["name"])()
        bits.state = _decode(value["state"])
        return np.random.Generator(bits)
    if kind == "dict":
        return {_decode(key): _decode(item) for key, item in value["items"]}
    items = [_decode(item) for item in value["items"]]
    if kind == "deque":
        return deque(items, value["maxlen"])
    return tuple(items) if kind == "tuple" else items
