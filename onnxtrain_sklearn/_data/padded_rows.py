"""The transformer :class:`PaddedRows`: examples of different lengths padded to one length, with a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .._utils.params import COUNT, Instance, Rules, check_parameters
from .inputs import Inputs

if TYPE_CHECKING:
    from typing_extensions import Self

_NAMES = Instance(str, "the name of an input")
_BY_INPUT = Instance(Mapping, "a dict by input")


class PaddedRows(TransformerMixin, BaseEstimator):
    """Pad examples of different lengths to one length, and mark what is padding by a mask.

    It makes rows of small networks, sequences or sets, for a graph that takes a mask: the graph has to ignore numbers
    where the mask is 0. ``X`` is a list or an object array of examples, so that scikit-learn can split it; a pipeline
    of this transformer and an estimator predicts one row for each example.

    Parameters
    ----------
    lengths : int or dict of str to int, default=None
        The length to which examples are padded, one for all inputs or one for each. None: that of the longest example
        of each call.
    mask : str, dict of str to str, or None, default="mask"
        The name of the input for the mask, float32 of the shape (n_examples, length): 1 where an example has an element
        on its first axis, 0 where it is padded. A str names the mask of the first input. A dict has the names of
        several masks by input. None: no mask.
    name : str, default="X"
        The name of the input for examples that are arrays. Examples with several inputs are dicts.

    Attributes
    ----------
    axes_ : dict of str to tuple of int
        The axes of an example that are padded, by input: the first, and others in which examples differ in size.

    Notes
    -----
    Padding is 0. Where an input holds indices, such as a list of edges, 0 is a valid index, so that the graph needs the
    mask of this input too; or give an adjacency matrix, in which padding means no edge.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import PaddedRows
    >>> rows = PaddedRows(name="steps").fit_transform([np.ones((2, 3)), np.ones((4, 3))])
    >>> rows
    Inputs(steps: float64 (2, 4, 3), mask: float32 (2, 4))
    >>> rows["mask"].tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """

    __module__ = "onnxtrain_sklearn"  # the path that pickles store for this class

    valid: ClassVar[Rules] = {
        "lengths": (COUNT, _BY_INPUT, None),
        "mask": (_NAMES, _BY_INPUT, None),
        "name": (_NAMES,),
    }

    def __init__(
        self,
        lengths: int | Mapping[str, int] | None = None,
        mask: str | Mapping[str, str] | None = "mask",
        name: str = "X",
    ) -> None:
        self.lengths = lengths
        self.mask = mask
        self.name = name

    def fit(self, X: Any, y: ArrayLike | None = None) -> Self:
        """Find the axes in which examples differ in size.

        Parameters
        ----------
        X : list or object array of ndarray, or of dict of str to ndarray
            An array, or arrays by input, for each example.
        y : None
            It is not used.

        Returns
        -------
        self
        """
        check_parameters(self, self.valid)
        examples = self._examples(X)
        for what, given in (("lengths", self.lengths), ("mask", self.mask)):
            if isinstance(given, Mapping) and (unknown := [name for name in given if name not in examples]):
                raise ValueError(f"{what} names {unknown[0]!r}, and the inputs of the examples are {list(examples)}.")
        for name, length in self.lengths.items() if isinstance(self.lengths, Mapping) else ():
            if not COUNT.accepts(length):
                raise ValueError(f"lengths[{name!r}] must be an int of at least 1, got {length!r}.")
        masks = self._masks(examples)
        for name, mask in masks.items():
            if not isinstance(mask, str) or list(masks.values()).count(mask) > 1:
                raise ValueError(f"mask[{name!r}] must be a str that names this mask alone, got {mask!r}.")
        if taken := [mask for mask in masks.values() if mask in examples]:
            raise ValueError(f"mask={taken[0]!r} is the name of an input of the examples: name the mask otherwise.")
        self.axes_ = {
            name: (0, *(i for i in range(1, arrays[0].ndim) if len({one.shape[i] for one in arrays}) > 1))
            for name, arrays in examples.items()
        }
        return self

    def transform(self, X: Any) -> Inputs:
        """Return the padded examples and their masks.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        Inputs
            A row for each example.

        Raises
        ------
        ValueError
            An example is longer than ``lengths``, or differs from the others in an axis that is not padded.
        """
        check_is_fitted(self)
        examples = self._examples(X)
        found = dict[str, np.ndarray]()
        if set(examples) != set(self.axes_):
            raise ValueError(f"Examples have the inputs {list(examples)}, and had {list(self.axes_)} in fit.")
        examples = {name: examples[name] for name in self.axes_}  # a mask without a name of its input is of the first
        masks = self._masks(examples)
        for name, arrays in examples.items():
            length = self.lengths.get(name) if isinstance(self.lengths, Mapping) else self.lengths
            sizes = [max(one.shape[i] for one in arrays) for i in range(arrays[0].ndim)]
            for axis, size in enumerate(sizes):
                if axis in self.axes_[name]:
                    if length is not None and size > length:
                        raise ValueError(
                            f"An example of {name!r} has {size} elements on axis {axis}, and lengths is {length}: "
                            f"raise it, or cut the example."
                        )
                    sizes[axis] = size if length is None else int(length)
                elif len(different := {one.shape[axis] for one in arrays}) > 1:
                    raise ValueError(
                        f"Examples of {name!r} have {sorted(different)} elements on axis {axis}, in which those of fit "
                        f"were equal."
                    )
            padded = np.zeros((len(arrays), *sizes), np.result_type(*arrays))
            for row, one in zip(padded, arrays, strict=True):
                row[tuple(slice(size) for size in one.shape)] = one
            found[name] = padded
            if name in masks:
                counts = np.array([len(one) for one in arrays])
                found[masks[name]] = (np.arange(sizes[0]) < counts[:, None]).astype(np.float32)
        return Inputs(found)

    def _masks(self, examples: Mapping[str, object]) -> Mapping[str, str]:
        """Return the names of the masks by input."""
        if isinstance(self.mask, str):
            return {next(iter(examples)): self.mask}
        return self.mask or {}

    def _examples(self, X: Any) -> dict[str, list[np.ndarray]]:
        """Return the arrays of all examples by input."""
        if isinstance(X, Mapping | Inputs) or hasattr(X, "columns") or not np.iterable(X):
            raise TypeError(
                f"PaddedRows takes a list or an object array of examples, each an array or a dict of arrays by input, "
                f"got {type(X).__name__}."
            )
        rows = [one if isinstance(one, Mapping) else {self.name: one} for one in X]
        if not rows:
            raise ValueError("PaddedRows takes at least one example, got none.")
        found = {str(name): [np.asarray(row[name]) for row in rows if name in row] for name in rows[0]}
        for i, row in enumerate(rows):
            if set(row) != set(rows[0]):
                raise ValueError(f"Example {i} has the inputs {list(row)}, and the first one {list(rows[0])}.")
        for name, arrays in found.items():
            ranks = {one.ndim for one in arrays}
            if len(ranks) > 1 or 0 in ranks:
                raise ValueError(
                    f"Examples of {name!r} must be arrays with the same number of axes, at least one, got "
                    f"{sorted(ranks)}."
                )
            if kinds := {one.dtype for one in arrays if one.dtype.kind not in "fiub"}:
                raise TypeError(f"Examples of {name!r} must hold numbers, got {sorted(map(str, kinds))[0]}.")
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags
