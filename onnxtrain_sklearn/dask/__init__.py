"""Training on the workers of a Dask cluster; the extra ``dask`` installs what it needs.

``estimators`` has the classes, ``partitions`` brings collections and files into shards of rows, ``rounds`` trains them,
``averaging`` says how shards train together, ``cluster`` waits for tasks and says what failed.
"""

from __future__ import annotations

from .averaging import LocalSGD as LocalSGD
from .estimators import DaskOrtGradientClassifier as DaskOrtGradientClassifier
from .estimators import DaskOrtGradientRegressor as DaskOrtGradientRegressor
