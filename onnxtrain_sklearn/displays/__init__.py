"""Displays: pictures of training, of weights and gradients, and of ONNX graphs, by scikit-learn's convention.

A display holds the data of a picture: ``from_estimator`` takes them from a fitted estimator and draws, ``plot`` draws
again. ``training`` also has the axes that the others draw into. matplotlib is optional: it is imported where something
is drawn, and nowhere else.
"""

from __future__ import annotations

from .graph import GraphDisplay as GraphDisplay
from .graph import plot_graph as plot_graph
from .training import TrainingDisplay as TrainingDisplay
from .weights import GradientDisplay as GradientDisplay
from .weights import WeightsDisplay as WeightsDisplay
