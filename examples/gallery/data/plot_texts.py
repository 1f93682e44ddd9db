"""
Texts: sparse TF-IDF with a linear model, token ids with an embedding
======================================================================

Which part of SciPy does a sentence of its documentation come from? The docstrings
that are installed with it are about three thousand sentences of four classes. A
linear model on sparse TF-IDF rows and a network with an embedding of words both
learn to tell.
"""

import inspect
import re

import matplotlib.pyplot as plt
import numpy as np
import onnx
import scipy.linalg
import scipy.signal
import scipy.sparse
import scipy.stats
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from onnxtrain_sklearn import AdamW, Linear, OrtGradientClassifier

texts, labels = [], []
for module in (scipy.linalg, scipy.signal, scipy.sparse, scipy.stats):
    label = module.__name__.removeprefix("scipy.")
    documents = {
        inspect.getdoc(getattr(module, name)) or "" for name in module.__all__
    }
    text = re.sub(
        r">>>.*|\.\.\.? .*|[^a-zA-Z.\s]+", " ", "\n\n".join(sorted(documents))
    )
    words = (
        " ".join(sentence.split()) for sentence in re.split(r"\.\s|\n\s*\n", text)
    )
    sentences = sorted(
        {
            sentence
            for sentence in words
            if 40 < len(sentence) < 400 and label[:4] not in sentence
        }
    )[:900]
    texts += sentences
    labels += [label] * len(sentences)
X_train, X_test, y_train, y_test = train_test_split(
    texts, np.array(labels), stratify=labels, random_state=0
)
print(f"{len(texts)} sentences, for example: {X_train[0]!r} ({y_train[0]})")

# %%
# Sparse rows
# -----------
#
# ``TfidfVectorizer`` makes a sparse row of each sentence. The estimator keeps it
# sparse: the product with the weights and its gradient are computed from the stored
# numbers alone, in training and in predictions.

linear = make_pipeline(
    TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2),
    OrtGradientClassifier(
        Linear(),
        learning_rate="cosine",
        learning_rate_init=0.05,
        max_iter=12,
        random_state=0,
    ),
).fit(X_train, y_train)
rows = linear[0].transform(X_train)
print(
    f"{rows.shape[1]} columns, {rows.nnz / rows.shape[0]:.0f} of them stored a row"
)
print(f"accuracy {linear.score(X_test, y_test):.3f}")

# %%
# Token ids
# ---------
#
# A network of your own reads a text as a row of numbers of words, with 0 for none.
# Its graph takes the vectors of these words from a table, and the mean of those
# that are words goes into the last layer. It is written down as text here.

counts = CountVectorizer(stop_words="english", min_df=2).fit(X_train)
analyze, vocabulary = counts.build_analyzer(), counts.vocabulary_


def token_ids(sentences, length=24):
    """Return a row of ``length`` ids for each sentence; 0: no word."""
    ids = np.zeros((len(sentences), length), dtype=np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        found = [
            1 + vocabulary[word] for word in analyze(sentence) if word in vocabulary
        ][:length]
        row[: len(found)] = found
    return ids


network = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
bag_of_words (int64[N, L] ids) => (float[N, 4] scores)
{
    vectors = Gather (embedding, ids)
    zero = Constant <value_int = 0> ()
    no_word = Equal (ids, zero)
    is_word = Not (no_word)
    one_or_zero = Cast <to = 1> (is_word)
    last = Constant <value_ints = [2]> ()
    mask = Unsqueeze (one_or_zero, last)
    kept = Mul (vectors, mask)
    along = Constant <value_ints = [1]> ()
    total = ReduceSum <keepdims = 0> (kept, along)
    number = ReduceSum <keepdims = 1> (one_or_zero, along)
    least = Constant <value_float = 1.0> ()
    divisor = Max (number, least)
    mean = Div (total, divisor)
    scores = Gemm (mean, weight, bias)
}""")
rng, size = np.random.default_rng(0), 16
for name, shape in {
    "embedding": (len(vocabulary) + 1, size),
    "weight": (size, 4),
    "bias": (4,),
}.items():
    values = (rng.normal(0, 0.3, shape) * (name != "bias")).astype(np.float32)
    network.graph.initializer.append(onnx.numpy_helper.from_array(values, name))

embedding = OrtGradientClassifier(
    network,
    optimizer=AdamW(lazy_rows=True),
    learning_rate="cosine",
    learning_rate_init=0.02,
    max_iter=12,
    random_state=0,
).fit(token_ids(X_train), y_train)
print(embedding.describe())
print(f"accuracy {embedding.score(token_ids(X_test), y_test):.3f}")
assert (
    min(linear.score(X_test, y_test), embedding.score(token_ids(X_test), y_test))
    > 0.6
)

# %%
# ``lazy_rows=True`` moves only the words that occur in a minibatch.
#
# What they have learned
# ----------------------
#
# Left, the words with the largest coefficient for each part of SciPy. Right, the
# embedding along its two main directions: words that speak for the same part lie on
# the same side.

classes, coefficients = linear[-1].classes_, np.asarray(linear[-1].coef_)
names = linear[0].get_feature_names_out()
top = {
    label: names[np.argsort(-row)[:6]]
    for label, row in zip(classes, coefficients, strict=True)
}

figure = plt.figure(figsize=(10, 4.4), layout="constrained")
left, right = figure.subfigures(1, 2)
for i, (axes, label) in enumerate(
    zip(left.subplots(2, 2).ravel(), classes, strict=True)
):
    axes.barh(top[label], np.sort(-coefficients[i])[:6] * -1, color=f"C{i}")
    axes.set_title(f"scipy.{label}", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.invert_yaxis()
plane = PCA(2, random_state=0).fit_transform(embedding.weights_["embedding"][1:])
axes = right.subplots()
axes.scatter(*plane.T, s=4, color="lightgray")
for i, label in enumerate(classes):
    for word in top[label]:
        axes.annotate(
            word, plane[vocabulary[word]], color=f"C{i}", fontsize=8, ha="center"
        )
axes.set(
    xticks=[], yticks=[], title="The embedding, words of the left in their colors"
)
plt.show()
