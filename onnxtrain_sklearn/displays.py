"""Displays: pictures of training and of weights, by scikit-learn's convention, and drawings of ONNX graphs.

A display holds the data of a picture; ``from_estimator`` takes them from a fitted estimator and draws, ``plot`` draws
again. matplotlib is imported where something is drawn, and nowhere else.
"""

from __future__ import annotations

from ._displays.graph import GraphDisplay as GraphDisplay
from ._displays.graph import plot_graph as plot_graph
from ._displays.training import TrainingDisplay as TrainingDisplay
from ._displays.weights import WeightsDisplay as WeightsDisplay

__all__ = ["GraphDisplay", "TrainingDisplay", "WeightsDisplay", "plot_graph"]
