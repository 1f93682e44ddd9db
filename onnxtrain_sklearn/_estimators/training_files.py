"""Training graphs of an estimator as files, and the state that was trained with them."""

from __future__ import annotations

import os
from collections.abc import Callable

import onnx
from sklearn.utils.validation import check_is_fitted

from .._export.folder import require_known_form, training_folder, write_folder
from .._export.source import ExportSource
from .._export.training_info import training_model
from .._optimizers.lbfgs import BaseOptimizer
from .._support.refusal import refusing
from .._support.typing import MatrixLike
from .export_source import export_source, untrained_run
from .loaded_state import LoadsState
from .run import Run


class TrainingFiles(LoadsState):
    """An estimator whose training can go on in any onnxruntime."""

    _run: Run
    to_onnx: Callable[[], onnx.ModelProto]
    optimizer: str | BaseOptimizer

    def export_training(
        self,
        folder: str | os.PathLike[str],
        X: MatrixLike | None = None,
        y: MatrixLike | None = None,
        *,
        batch_size: int | None = None,
        form: str = "both",
        target: str = "any",
    ) -> None:
        """Write a folder of graphs that train this model in any onnxruntime, in any language.

        The folder holds ``step.onnx``, a step on a minibatch, ``epoch.onnx``, a loop over the minibatches of an epoch,
        ``predict.onnx``, whose weights are inputs, ``state.safetensors`` with the weights and the optimizer's state,
        and ``manifest.json``, which says what the inputs and outputs are. The graphs consist of ONNX's own operators.
        Training goes on as by :meth:`partial_fit`; :meth:`load_state` brings the result back.

        Parameters
        ----------
        folder : str or path
            The folder to write. One that holds an earlier export is replaced as a whole.
        X, y : data as for :meth:`fit`, default=None
            Of an estimator that is not fitted: some rows, for the shapes of the graph and the classes. It is exported
            as it is before training, and stays as it is.
        batch_size : int, default=None
            Rows of a minibatch; None: those of the estimator, of ``accumulate`` minibatches together.
        form : {"both", "step", "epoch"}, default="both"
            The training graphs to write.
        target : {"any", "web"}, default="any"
            What the graphs are to run on. "web": also on WebGPU in browsers, which lacks float64: the scalars of a
            step, such as the bias corrections of Adam, and targets that are scaled are computed in float32.

        Raises
        ------
        ModelError
            A setting has no place in the graphs: L-BFGS; or an input or a weight has the name of a tensor of the
            state.
        FileExistsError
            The folder holds other files.

        Examples
        --------
        >>> import os, tempfile
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = OrtGradientClassifier(MLP((8,)), random_state=0).partial_fit(X, y, classes=[0, 1, 2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.export_training(f"{folder}/iris", batch_size=32)
        ...     sorted(os.listdir(f"{folder}/iris"))
        ['epoch.onnx', 'manifest.json', 'predict.onnx', 'state.safetensors', 'step.onnx']
        """
        require_known_form(form, target)
        if X is None or y is None:
            check_is_fitted(self)
            run = self._run
        else:
            run = untrained_run(self, X, y)
        with refusing("The training graphs cannot be made"):
            content = training_folder(self._export_source(run, batch_size, target), form)
        write_folder(content, folder)

    def to_training_onnx(self, *, batch_size: int | None = None) -> onnx.ModelProto:
        """Return the graph of ``to_onnx()`` with a training step in ``training_info``, ONNX's own form.

        The step (``algorithm``) reads the weights of the inference graph by their names; its own initializers are the
        optimizer's state, which ``initialization`` sets back, and ``update_binding`` says which output replaces which
        initializer. Runtimes that only predict ignore it. :func:`load_training` goes on training the file.

        Parameters
        ----------
        batch_size : int, default=None
            Rows of a minibatch; None: those of the estimator, of ``accumulate`` minibatches together.

        Raises
        ------
        ModelError
            A setting has no place in the graphs, as for :meth:`export_training`, or the step needs more than operators
            of the default domain, or the inference graph lacks what is trained: low-rank factors, float16 weights; or
            the model encodes columns of a table.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import SGD, MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = OrtGradientClassifier(MLP((8,)), optimizer=SGD(), random_state=0)
        >>> classifier = classifier.partial_fit(X, y, classes=[0, 1, 2])
        >>> info = classifier.to_training_onnx().training_info[0]
        >>> sorted(binding.key for binding in info.update_binding)
        ['layers.0.bias', 'layers.0.weight', 'layers.1.bias', 'layers.1.weight', 'step']
        """
        check_is_fitted(self)
        with refusing("The training step cannot be made"):
            return training_model(self._export_source(self._run, batch_size, "any"), self.to_onnx())

    def _export_source(self, run: Run, batch_size: int | None, target: str) -> ExportSource:
        """Return what the training graphs are made from."""
        return export_source(self, run, batch_size, target)
