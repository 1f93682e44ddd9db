"""Passages of documentation that both estimators share."""

from __future__ import annotations

PARAMETERS = """
    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, fitted estimator, graph builder or None, default=None
        The graph to train: float32 or float64. It is trained from the weights that it has, and is not changed;
        :meth:`describe` lists them. Opsets 11 to 26 are trained as far as the installed onnxruntime takes them; others
        are converted where ONNX can. Its final activation is recognised, behind operators that change the shape alone
        or nothing: the loss is taken on the scores before it{model_extra}.
        A fitted scikit-learn {kind}, or a pipeline that ends in one, is converted by skl2onnx and trained from its
        own numbers; its features{labels} are kept, columns of text that it encodes among them. A graph builder, such
        as ``MLP((64, 32))`` or ``Linear()``, makes a graph sized to the data; "mlp", "linear": these with their
        defaults, nested parameters (``model__hidden_layer_sizes``) included; None: ``MLP()``.
    loss : str or Loss, default="{loss}"
        What is minimised: a name in :data:`onnxtrain_sklearn.losses.LOSSES` or an object. The mean over the rows of
        a minibatch, weighted by ``sample_weight``. For a fitted scikit-learn model "{loss}"
        stands for {fitted_loss}.
    optimizer : str or Optimizer, default="adamw"
        "sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs", or an object; its parameters are nested
        (``optimizer__momentum``). "adamw" decays all weights by 0.01 times the learning rate a step, as in PyTorch.
    learning_rate_init : float, default=0.001
        Learning rate that the schedule starts from; 0 leaves the weights as they are.
    learning_rate : str or Schedule, default="constant"
        "constant", "invscaling", "adaptive", "step", "exponential", "cosine", "linear", "one_cycle", "warmup", or
        an object.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto": min(200, n_samples). L-BFGS always takes all rows.
    max_iter : int, default=200
        Epochs at most.
    shuffle : bool, default=True
        Whether the rows are put into a new order before every epoch.
    alpha : float, default=0.0
        Strength of the penalty on parameters of rank >= 2:
        ``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)``, divided by the sum of the sample weights of the
        minibatch, as in scikit-learn's MLP.
    l1_ratio : float, default=0.0
        Share of the L1 norm in the penalty, in [0, 1].
    max_grad_norm : float or None, default=None
        Upper limit of the Euclidean norm of all gradients together; None: no limit.
    trainable : "all", str, list of str, or callable, default="all"
        Which parameters are trained: names or glob patterns ("layers.1.*"), or a function
        ``(name, array) -> bool``. The others keep their values to the bit. Those of a fitted scikit-learn model are
        named by step and attribute: "logisticregression.coef", "*.coef", "pca.*".
    output : str or None, default=None
        The output of the graph to train; None: the first float one that depends on a float initializer.
    output_kind : {{{kinds}}}, default="auto"
        What the output of a given graph holds.{output_kind} ``fit`` runs the graph as it was given on some rows of
        ``X``, and raises ModelError where the untrained estimator would predict something else.{class_weight}
    tol : float, default=1e-4
        Least improvement of the loss (or of the validation score) that counts as one.
    n_iter_no_change : int or np.inf, default=10
        Training ends after more epochs than this in a row without improvement; np.inf: never for that reason.
    early_stopping : bool, default=False
        Whether to watch the score on validation data instead of the training loss, and to end with the weights that
        scored best.
    validation_fraction : float, default=0.1
        Share of the data that early stopping holds out where ``fit`` is given no ``X_val``.
    warm_start : bool, default=False
        Whether ``fit`` goes on from where the last one ended, weights and optimizer alike, for ``max_iter`` more
        epochs. ``model`` and ``output`` must be what they were at the first.
    random_state : int, RandomState or None, default=None
        Seeds the initial weights of builders, the order of the rows, the validation split and dropout.
    verbose : bool or int, default=0
        Whether to print what is trained, and a line per epoch.
    engine : {{"auto", "ort-training", "portable"}}, default="auto"
        What differentiates the graph. "auto": onnxruntime-training where it is installed and proven right for every
        operator on the way, else the portable engine. ``engine_`` says which it was.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:1". A device that cannot be had is an error.
    providers, provider_options : list, default=None
        Execution providers of onnxruntime and a dict of options for each, in place of the device's.
    session_options : dict or None, default=None
        Options of onnxruntime's sessions by name (``{{"intra_op_num_threads": 2}}``); names with a dot are
        configuration entries. By default small graphs get one thread, large ones all cores.
"""


ATTRIBUTES = """
    Attributes
    ----------{classes}
    n_features_in_ : int
        Columns of ``X`` (not for a dict of inputs).
    feature_names_in_ : ndarray of str
        Names of the columns, where ``X`` has them.
    n_outputs_ : int
        Scores a row.
    n_iter_ : int
        Epochs trained, over all calls with ``warm_start`` and ``partial_fit``; one that was interrupted does not count.
    t_ : int
        Rows seen in them.
    loss_ : float
        Mean loss of the last epoch, the penalty included.
    loss_curve_ : list of float
        Mean loss of each epoch, of the latest 100,000.
    best_loss_ : float or None
        Least of all; None with early stopping.
    validation_scores_ : list of float or None
        {score} on the validation data after each epoch, of the latest 100,000.
    best_validation_score_ : float or None
        Best of them.
    engine_, device_ : str
        What was used.
    model_ : onnx.ModelProto
        The trained inference graph.
    coef_, intercept_ : ndarray, or a number
        Of graphs that are one linear layer of ``X``, a fitted linear model among them; others have none. Shapes are
        those of scikit-learn's linear models.
    weights_ : dict of str to ndarray
        Every float parameter by its name in the graph, trained or frozen, and running statistics.
"""
