"""How CSV files are written: separator, decimal mark, encoding and words for missing values, as given or as found.

``csv_formats`` finds what was not given by rules that are certain, and refuses files that two formats fit.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import tarfile
import zipfile
import zlib
from bz2 import open as open_bz2
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import open as open_gzip
from lzma import LZMAError
from lzma import open as open_lzma
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..exceptions import warn
from .console import UsageError

SEPARATORS = (",", ";", "\t", "|")

SAMPLE_BYTES = 2**20
"""Bytes from the beginning of a file in which separator, decimal mark and words are looked for."""

MISSING = frozenset(
    ", NA, N/A, n/a, NaN, nan, -NaN, -nan, null, NULL, None, <NA>, #N/A, #NA, #N/A N/A, "
    "1.#IND, -1.#IND, 1.#QNAN, -1.#QNAN".split(", ")
)
"""Words that pandas takes for missing values."""

MISSING_AMONG_NUMBERS = frozenset(["?", "-", "--", ".", "..", "...", "*", "n.a.", "N.A.", "k.A.", "k. A.", "missing"])
"""Words that are missing values in a column of numbers."""

UNREADABLE = (OSError, EOFError, zlib.error, LZMAError, zipfile.BadZipFile, tarfile.TarError)
"""Errors of files that cannot be decompressed."""


@dataclass(frozen=True)
class CsvOptions:
    """What the user says about CSV files; None is to be found.

    Attributes
    ----------
    separator, decimal, encoding : str or None
    missing : sequence of str
        Words for missing values, in all columns.
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written.

    Attributes
    ----------
    separator, decimal, encoding : str
    missing : mapping of str to list of str
        Words for missing values by column, besides those of pandas.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8-sig"
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        mark = "tab" if self.separator == "\t" else repr(self.separator)
        encoding = "UTF-8" if self.encoding == "utf-8-sig" else self.encoding
        columns: dict[tuple[str, ...], list[str]] = {}
        for name, words in self.missing.items():
            columns.setdefault(tuple(words), []).append(name)
        words = "".join(
            f", {' and '.join(map(repr, words))} missing in {', '.join(map(repr, names[:5]))}"
            + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            for words, names in columns.items()
        )
        return f"separator {mark}, decimal {self.decimal!r}, encoding {encoding}{words}"


@dataclass(frozen=True)
class _Sample:
    """The first rows of a CSV file as texts, by column."""

    separator: str
    encoding: str
    names: Sequence[str]
    columns: Mapping[str, set[str]]


def csv_formats(
    files: Sequence[Path],
    given: CsvOptions,
    remembered_decimal: str | None = None,
    remembered_missing: Mapping[str, Sequence[str]] | None = None,
) -> dict[Path, CsvFormat]:
    """Return the format of each file of a table.

    Each file has an encoding and a separator of its own; the decimal mark and the words for missing values are those of
    all of them.

    - Encoding: that of a byte order mark; else UTF-8 if the whole file is UTF-8, else Windows-1252, which is Latin-1
      with more characters.
    - Separator: the one that splits the header, and all rows into as many fields. Of .tsv files, a tab.
    - Decimal mark: that of columns that only one mark makes numbers. "1.234" and "1,234" may be decimals or have a
      mark of thousands; if there is nothing else, a comma between the columns means decimal points, and other files are
      refused.
    - Words for missing values: those of ``MISSING_AMONG_NUMBERS`` in columns that hold numbers besides.

    Parameters
    ----------
    files : sequence of Path
    given : CsvOptions
    remembered_decimal : str, optional
        The mark of the table that a model was trained on, for a table that may have either.
    remembered_missing : mapping, optional
        Words by column of that table, which are missing values here too.

    Raises
    ------
    UsageError
        Two formats fit.
    ValueError
        The encoding is not found.
    """
    samples = {file: _sample(file, given) for file in files}
    texts: dict[str, set[str]] = {}
    for sample in samples.values():
        for name, found in sample.columns.items():
            texts.setdefault(name, set()).update(found - MISSING - set(given.missing))
    decimal = given.decimal or _decimal(files[0], texts, samples.values(), remembered_decimal)
    _warn_of_thousands(files[0], texts, decimal)
    missing: dict[str, list[str]] = {}
    for name, found in texts.items():
        words = {*given.missing, *(remembered_missing or {}).get(name, ())}
        among = found & MISSING_AMONG_NUMBERS
        others = found - words - among
        if among and others and all(_is_plain(text, decimal) for text in others):
            words |= among
        if words:
            missing[name] = sorted(words)
    return {
        file: CsvFormat(
            one.separator,
            decimal,
            one.encoding,
            {name: words for name, words in missing.items() if name in one.names},
        )
        for file, one in samples.items()
    }


# Content of files.


OPENERS: Mapping[str, Callable[..., Any]] = {".gz": open_gzip, ".bz2": open_bz2, ".xz": open_lzma}


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open the content of a file, which may be compressed in a way that the standard library reads."""
    if ".tar" in path.suffixes:
        with tarfile.open(path) as archive:
            yield cast("BinaryIO", archive.extractfile(archive.getmembers()[0]))
    elif path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as pack, pack.open(pack.namelist()[0]) as member:
            yield cast("BinaryIO", member)
    else:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as content:
            yield content


def _sample(path: Path, given: CsvOptions) -> _Sample:
    """Return the first rows of a file; none of a file that cannot be read, which is an error of the reader."""
    separator = given.separator or ("\t" if ".tsv" in (one.lower() for one in path.suffixes) else None)
    nothing = _Sample(separator or ",", given.encoding or "utf-8-sig", [], {})
    if path.suffix.lower() == ".zst":
        return nothing
    try:
        with opened(path) as content:
            start = content.read(SAMPLE_BYTES)
            encoding = given.encoding or _encoding(path, start, content)
    except (*UNREADABLE, IndexError):
        return nothing
    is_cut = len(start) == SAMPLE_BYTES
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(start, final=not is_cut)
    except UnicodeDecodeError:
        return nothing
    separator = separator or _separator(path, text, is_cut=is_cut)
    rows = _rows(text, separator, is_cut=is_cut)
    if not rows:
        return _Sample(separator, encoding, [], {})
    names = rows[0]
    columns = {name: {row[i].strip() for row in rows[1:] if i < len(row)} for i, name in enumerate(names)}
    return _Sample(separator, encoding, names, columns)


def _encoding(path: Path, start: bytes, rest: BinaryIO) -> str:
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if start.startswith(mark):
            return name
    if b"\0" in start:
        raise ValueError(
            f"{str(path)!r} holds zero bytes, so it is no CSV file, or its --encoding is utf-16-le or -be."
        )
    decoders = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252")}
    block = start
    while decoders:
        for name in list(decoders):
            try:
                decoders[name].decode(block, final=not block)
            except UnicodeDecodeError:
                del decoders[name]
        if not block:
            break
        block = rest.read(SAMPLE_BYTES)
    if not decoders:
        raise ValueError(f"{str(path)!r} is written neither in UTF-8 nor in Windows-1252: name its --encoding.")
    return "utf-8-sig" if "utf-8" in decoders else "cp1252"


def _rows(text: str, separator: str, *, is_cut: bool) -> list[list[str]]:
    """Return the rows of a text that are not empty, without a last one that is cut off."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:  # a field above 100,000 characters: this separator leaves a quotation mark without an end
        return []
    return [row for row in (rows[:-1] if is_cut else rows) if row]


def _separator(path: Path, text: str, *, is_cut: bool) -> str:
    fits, splits = {}, []
    for separator in SEPARATORS:
        rows = _rows(text, separator, is_cut=is_cut)
        if not rows or len(rows[0]) < 2:
            continue
        splits.append(separator)
        if all(len(row) == len(rows[0]) for row in rows):
            fits[separator] = len(rows[0])
    if len(fits) > 1:
        told = " and ".join(f"{mark!r} ({columns} columns)" for mark, columns in fits.items())
        raise UsageError(f"{str(path)!r} may be separated by {told}: name the right one by --sep.")
    if fits:
        return next(iter(fits))
    return splits[0] if len(splits) == 1 else ","  # rows that are too long are an error of the reader


# Numbers.


def _number(decimal: str) -> re.Pattern[str]:
    mark = re.escape(decimal)
    return re.compile(rf"[+-]?(?:(?:\d+(?:{mark}\d*)?|{mark}\d+)(?:[eE][+-]?\d+)?|[iI]nf(?:inity)?)")


def _grouped(decimal: str) -> re.Pattern[str]:
    thousands, mark = (r"\.", ",") if decimal == "," else (",", r"\.")
    return re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+(?:{mark}\d+)?")


NUMBERS = {mark: _number(mark) for mark in ".,"}
GROUPED = {mark: _grouped(mark) for mark in ".,"}
INTEGER = re.compile(r"[+-]?\d+")


def _is_plain(text: str, decimal: str) -> bool:
    return bool(NUMBERS[decimal].fullmatch(text))


def _is_grouped(text: str, decimal: str) -> bool:
    return bool(GROUPED[decimal].fullmatch(text))


def _numbers(texts: set[str], decimal: str) -> set[str]:
    """Return the texts of a column of numbers in this notation; none of other columns."""
    others = texts - MISSING_AMONG_NUMBERS
    return others if all(_is_plain(text, decimal) or _is_grouped(text, decimal) for text in others) else set()


def _decimal(path: Path, texts: Mapping[str, set[str]], samples: Any, remembered: str | None) -> str:
    certain: dict[str, tuple[str, str]] = {}  # an example of each mark: its column and text
    open_example: tuple[str, str] | None = None
    for name, found in texts.items():
        notations = [mark for mark in ".," if _numbers(found, mark)]
        marked = sorted(text for text in found - MISSING_AMONG_NUMBERS if "." in text or "," in text)
        if not marked or not notations:
            continue
        if len(notations) == 2:
            open_example = open_example or (name, marked[0])
        else:
            (mark,) = notations
            other = "," if mark == "." else "."
            telling = [text for text in marked if not (_is_plain(text, other) or _is_grouped(text, other))]
            certain.setdefault(mark, (name, telling[0]))
    if len(certain) == 2:
        told = " and ".join(f"column {name!r} holds {text!r}" for name, text in certain.values())
        raise UsageError(f"In {str(path)!r}, {told}: name the decimal mark by --decimal.")
    if certain:
        return next(iter(certain))
    if open_example is None or all(one.separator == "," for one in samples):
        return "."
    if remembered is not None:
        return remembered
    name, text = open_example
    mark = "," if "," in text else "."
    raise UsageError(
        f"In {str(path)!r}, column {name!r} holds {text!r}, and nothing says whether its {mark!r} is a decimal mark or "
        f"stands between thousands: give --decimal {mark} or the other one."
    )


def _warn_of_thousands(path: Path, texts: Mapping[str, set[str]], decimal: str) -> None:
    for name, found in texts.items():
        grouped = sorted(text for text in _numbers(found, decimal) if not _is_plain(text, decimal))
        if grouped:
            warn(
                f"Column {name!r} of {str(path)!r} has marks between thousands, as in {grouped[0]!r}, and is read as "
                "text: write its numbers without them."
            )


def as_record(formats: Mapping[Path, CsvFormat]) -> list[dict[str, object]]:
    """Return each different format, with the number of files that have it, as JSON has them."""
    counts = Counter(map(str, formats.values()))
    different = {str(one): one for one in formats.values()}
    return [
        {
            "files": counts[told],
            "separator": one.separator,
            "decimal": one.decimal,
            "encoding": one.encoding,
            "missing": {name: list(words) for name, words in one.missing.items()},
        }
        for told, one in different.items()
    ]
