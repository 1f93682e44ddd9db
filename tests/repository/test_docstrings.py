"""The examples of the public classes run, those of their methods too; modules alone do not show these to pytest."""

from __future__ import annotations

from doctest import DocTest, DocTestFinder, DocTestRunner

import pytest

import onnxtrain_sklearn

CLASSES = [value for value in map(vars(onnxtrain_sklearn).get, onnxtrain_sklearn.__all__) if isinstance(value, type)]
EXAMPLES = {
    test.name: test
    for cls in CLASSES
    for part in cls.__mro__
    if part.__module__.partition(".")[0] == "onnxtrain_sklearn"
    for test in DocTestFinder(recurse=True).find(part, module=False)
    if test.examples and "." in test.name
}


def test_methods_have_examples():
    assert "OrtGradientClassifier.fit" in EXAMPLES


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("test", EXAMPLES.values(), ids=str)
def test_examples_of_methods_run(test: DocTest):
    said: list[str] = []
    assert not DocTestRunner().run(test, out=said.append).failed, "".join(said)
