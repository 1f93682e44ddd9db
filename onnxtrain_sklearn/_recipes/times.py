"""Columns of dates and times: reading them as nanoseconds, and the numbers that are made of them, in NumPy and in ONNX.

A column becomes int64 nanoseconds since 1970-01-01, in UTC, and :data:`MISSING` where there is none. :class:`Calendar`
makes the numbers :data:`PARTS` of it. ``numbers`` computes them by NumPy's calendar, for the statistics of a
preprocessing; ``emit`` by integer arithmetic in the graph, for training and prediction.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph import GraphBuilder

MISSING = int(np.iinfo(np.int64).min)
"""The instant that stands for a missing one: NaT of NumPy and pandas."""

PARTS = (
    "elapsed", "year", "month", "weekday", "hour",
    "month_sin", "month_cos", "weekday_sin", "weekday_cos", "hour_sin", "hour_cos",
)  # fmt: skip
"""The numbers of an instant: days since the first one in training, year, month from 1, weekday from 0 (Monday), hour;
then sine and cosine of the share of the year, the week and the day that has passed, by whole months, days and hours."""

_HOUR = 3_600_000_000_000
_DAY = 24 * _HOUR


def holds_times(series: Any) -> bool:
    """Return True for a column of dates, or of dates with times, of pandas or polars; durations are none."""
    dtype = series.dtype
    return getattr(dtype, "kind", "") == "M" or str(dtype).partition("(")[0] in ("Date", "Datetime")


def nanoseconds_of(name: str, series: Any) -> np.ndarray:
    """Return a column of times as nanoseconds in UTC; times without a zone are taken as they are."""
    if hasattr(series, "iloc"):  # pandas
        kind = series.dtype
        if getattr(kind, "tz", None) is not None or getattr(getattr(kind, "pyarrow_dtype", None), "tz", None):
            series = series.dt.tz_convert(None)
        if not isinstance(series.dtype, np.dtype):
            gone = series.isna().tolist()
            return nanoseconds_of_objects(name, [None if none else one for one, none in zip(series, gone, strict=True)])
        return _nanoseconds(name, series.to_numpy())
    return _nanoseconds(name, np.asarray(series.to_numpy()))


def nanoseconds_of_objects(name: str, values: list[Any]) -> np.ndarray:
    """Return dates and times of Python, or of pandas, as nanoseconds in UTC; None is missing."""
    return _nanoseconds(name, np.array([_without_zone(value) for value in values], "datetime64"))


def _without_zone(value: Any) -> Any:
    """Return a value from which NumPy makes a datetime64 of microseconds, or of nanoseconds for a Timestamp."""
    if value is None:
        return np.datetime64("NaT", "us")
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return value.to_datetime64() if hasattr(value, "to_datetime64") else np.datetime64(value, "us")


def _nanoseconds(name: str, values: np.ndarray) -> np.ndarray:
    seconds = values.astype("datetime64[s]")  # NumPy would wrap instants beyond the range of nanoseconds
    with_year = seconds[~np.isnat(seconds)]
    if len(with_year) and not (with_year.min() >= _LEAST and with_year.max() <= _LARGEST):
        outside = with_year.min() if with_year.min() < _LEAST else with_year.max()
        raise ValueError(
            f"Column {name!r} of X holds {outside}, and nanoseconds in int64, the type of the graph's inputs, reach "
            f"from {_LEAST} to {_LARGEST}: leave such rows out, or make them missing."
        )
    return values.astype("datetime64[ns]").view(np.int64)


_LEAST, _LARGEST = (np.datetime64(day, "s") for day in ("1677-09-22", "2262-04-11"))


@dataclass(frozen=True)
class Calendar:
    """The numbers that are made of the instants of a column.

    Attributes
    ----------
    place : int
        Index of the column in the table.
    first : int
        The first instant in training, in nanoseconds.
    """

    place: int
    first: int

    @classmethod
    def fit(cls, place: int, instants: np.ndarray) -> Calendar:
        """Return the calendar of a column whose first instant is that of ``instants``; 1970 if all are missing."""
        known = instants[instants != MISSING]
        return cls(place, int(known.min()) if len(known) else 0)

    def numbers(self, instants: np.ndarray) -> np.ndarray:
        """Return the numbers of instants, float64 of shape (N, len(PARTS)), NaN where they are missing."""
        missing = instants == MISSING
        at = np.where(missing, self.first, instants).view("datetime64[ns]")
        days = at.astype("datetime64[D]")
        first = np.datetime64(self.first, "ns").astype("datetime64[D]")
        of_day = ((at - days).astype(np.int64) - self.first % _DAY) / _DAY
        month = at.astype("datetime64[M]").astype(np.int64) % 12
        weekday = (days.astype(np.int64) + 3) % 7
        hour = at.astype("datetime64[h]").astype(np.int64) % 24
        year = at.astype("datetime64[Y]").astype(np.int64) + 1970
        cycles = [_cycle(n)[values] for n, values in ((12, month), (7, weekday), (24, hour))]
        plain = [(days - first).astype(np.int64) + of_day, year, month + 1, weekday, hour]
        found = np.column_stack([*plain, *cycles]).astype(np.float64)
        found[missing] = np.nan
        return found

    def emit(self, op: GraphBuilder, instants: ir.Value) -> ir.Value:
        """Append the numbers of instants (N, 1), float32 of shape (N, len(PARTS)).

        Year and month follow from the number of days since 0000-03-01 in cycles of 400 years, as in H. Hinnant,
        "chrono-compatible low-level date algorithms".
        """
        missing = op.Equal(instants, np.int64(MISSING))
        at = op.Where(missing, np.int64(self.first), instants)
        days, of_day = _divided(op, at, _DAY)
        era, day_of_era = _divided(op, op.Add(days, np.int64(719468)), 146097)
        leap_days = op.Sub(
            op.Add(_quotient(op, day_of_era, 1460), _quotient(op, day_of_era, 146096)),
            _quotient(op, day_of_era, 36524),
        )
        year_of_era = _quotient(op, op.Sub(day_of_era, leap_days), 365)
        before = op.Sub(
            op.Add(op.Mul(year_of_era, np.int64(365)), _quotient(op, year_of_era, 4)), _quotient(op, year_of_era, 100)
        )
        from_march = _quotient(op, op.Add(op.Mul(op.Sub(day_of_era, before), np.int64(5)), np.int64(2)), 153)
        month = op.Mod(op.Add(from_march, np.int64(2)), np.int64(12))  # from 0
        turned = op.Cast(op.Less(month, np.int64(2)), to=ir.DataType.INT64)
        year = op.Add(op.Add(year_of_era, op.Mul(era, np.int64(400))), turned)
        weekday = op.Mod(op.Add(days, np.int64(3)), np.int64(7))
        hour = _quotient(op, of_day, _HOUR)
        # Days and the rest of the day apart: nanoseconds over more than 292 years would overflow.
        first_day, first_rest = divmod(self.first, _DAY)
        rest = op.Cast(op.Sub(of_day, np.int64(first_rest)), to=ir.DataType.DOUBLE)
        whole = op.Cast(op.Sub(days, np.int64(first_day)), to=ir.DataType.DOUBLE)
        elapsed = op.Cast(op.Add(whole, op.Div(rest, np.float64(_DAY))), to=ir.DataType.FLOAT)
        numbers = [op.Cast(one, to=ir.DataType.FLOAT) for one in (year, op.Add(month, np.int64(1)), weekday, hour)]
        cycles = [
            op.Gather(_cycle(n).astype(np.float32), op.Squeeze(values, axes=[1]), axis=0)
            for n, values in ((12, month), (7, weekday), (24, hour))
        ]
        return op.Where(missing, np.float32(np.nan), op.Concat(elapsed, *numbers, *cycles, axis=1))


def _cycle(n: int) -> np.ndarray:
    """Return sine and cosine of the n steps of a cycle, of shape (n, 2)."""
    angles = 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.sin(angles), np.cos(angles)])


def _divided(op: GraphBuilder, value: ir.Value, divisor: int) -> tuple[ir.Value, ir.Value]:
    """Append the quotient, rounded down, and the rest; Div rounds to zero."""
    rest = op.Mod(value, np.int64(divisor))
    return op.Div(op.Sub(value, rest), np.int64(divisor)), rest


def _quotient(op: GraphBuilder, value: ir.Value, divisor: int) -> ir.Value:
    """Append the quotient of a number that is not negative."""
    return op.Div(value, np.int64(divisor))
