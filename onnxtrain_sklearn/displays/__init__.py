"""Displays: pictures of training and of weights, by scikit-learn's convention, and drawings of ONNX graphs.

A display holds the data of a picture; ``from_estimator`` takes them from a fitted estimator and draws, ``plot`` draws
again. matplotlib is imported where something is drawn, and nowhere else.
"""

from __future__ import annotations

from .graph import GraphDisplay as GraphDisplay
from .graph import plot_graph as plot_graph
from .training import TrainingDisplay as TrainingDisplay
from .weights import GradientDisplay as GradientDisplay
from .weights import WeightsDisplay as WeightsDisplay
