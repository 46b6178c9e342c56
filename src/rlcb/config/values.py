"""Types of values, which check and convert what a file or a flag says, and the base class of sections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

from rlcb.quantities import parse_count, parse_duration


def _whole(value: Any) -> Any:
    """Convert `25e6` (a float without a fraction) and `25M` to int. Strings of digits stay strings."""
    if isinstance(value, str) and value[-1:].isalpha():
        with _expected():
            return parse_count(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count_or_auto(value: Any) -> Any:
    """Refuse other values than `auto` and whole numbers from 1 in one sentence, not one for each type."""
    try:
        whole = value if value == "auto" else _whole(value)
    except PydanticCustomError:
        whole = None
    if whole != "auto" and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
        raise PydanticCustomError("quantity", "must be a whole number of at least 1, or auto")
    return whole


def _time(unit: str) -> BeforeValidator:
    """Return a validator that converts a time in words, such as `1h30m`, to a number of `unit`."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        with _expected():
            return parse_duration(value, unit)

    return BeforeValidator(convert)


@contextlib.contextmanager
def _expected() -> Iterator[None]:
    """Turn a ValueError into an error whose report begins with the key and the value."""
    try:
        yield
    except ValueError as error:
        raise PydanticCustomError("quantity", "{rule}", {"rule": str(error)}) from None


def _without_repetition(values: list[Any]) -> list[Any]:
    repeated = [value for index, value in enumerate(values) if value in values[:index]]
    if repeated:
        raise ValueError(f"{repeated[0]!r} is given twice")
    return values


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
CountOrAuto = Annotated[Count | Literal["auto"], BeforeValidator(_count_or_auto)]
NonNegative = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Hours = Annotated[PositiveFloat, _time("h")]
Minutes = Annotated[PositiveFloat, _time("m")]
Seconds = Annotated[PositiveFloat, _time("s")]
Pause = Annotated[Coefficient, _time("s")]
"""Seconds, or 0 for none."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Once = AfterValidator(_without_repetition)
"""Refuses a list that has a value twice."""
Counts = Annotated[tuple[Count, ...], Strict(False), Field(min_length=1)]
Widths = Counts


class Section(BaseModel):
    """Base class of the sections: frozen, strict about types, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)
