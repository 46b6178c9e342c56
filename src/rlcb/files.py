"""Write files atomically, and write strict JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def strict_json(value: Any) -> Any:
    """Return `value` as plain values for strict JSON: NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing or damaged."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(path: Path, value: Any) -> None:
    """Write `value` as strict JSON, atomically. Raises OSError."""
    write_atomically(path, (json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n").encode())


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write bytes under a temporary name, then rename: readers see the old or the whole new file.

    Raises OSError; the temporary file is then removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
