"""Cases of operators that onnxruntime's optimizers write, each one node."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import erf

import numpy as np

CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class FusedCase:
    """A node: its inputs in their order (None: left out), how many outputs it has, and what they are in numpy.

    ``refused`` says why it has no form; ``opsets`` are those that it is tried in. ``broken`` begins the versions of
    onnxruntime whose kernel is for other devices (packed keys), crashes (Attention without its optional bias), passes
    over an input (the bias of SkipSimplifiedLayerNormalization) or reads beyond it (an attention_bias for one row).
    """

    operator: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: dict = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    reference: object = None
    refused: str = ""
    opsets: tuple[int, ...] = (13, 18)
    broken: str = ""

    @property
    def constants(self):
        """The inputs that the form needs as constants."""
        return (1,) if self.operator.endswith("ExpandDims") else ()

    @property
    def domain(self):
        return CONTRIB if self.operator.startswith(CONTRIB) else ""


CASES: list[FusedCase] = []


def drawn_value(value):
    if isinstance(value, tuple):
        return np.random.default_rng(len(CASES) + sum(value)).normal(size=value).astype(np.float32)
    return value


def case(
    operator, *inputs, plain=False, outputs=(0,), reference=None, refused="", opsets=(13, 18), broken="", **attributes
):
    """Add a case; a tuple stands for random numbers of that shape."""
    name = operator if plain else f"{CONTRIB}.{operator}"
    CASES.append(
        FusedCase(name, tuple(map(drawn_value, inputs)), attributes, outputs, reference, refused, opsets, broken)
    )


def integers(*values, kind=np.int32):
    return np.array(values, kind)


def exact(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x * np.sqrt(0.5)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def tanh_form(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


X = (2, 3, 4)
case("Gelu", X, opsets=(11, 13, 18, 20))
case("BiasGelu", X, (4,), opsets=(13, 20))
case("FastGelu", X)
case("FastGelu", X, (4,))
case("QuickGelu", X)
case("QuickGelu", X, alpha=1.0)
case("BiasAdd", X, (4,), X, reference=lambda x, b, s: x + b + s)
case("BiasSplitGelu", X, (4,), reference=lambda x, b: (x + b)[..., :2] * exact((x + b)[..., 2:]))
case("BiasSoftmax", X, (2, 1, 4), axis=2, is_inner_broadcast=1, reference=lambda x, b: softmax(x + b))
case("BiasSoftmax", X, (3, 4), axis=-1, is_inner_broadcast=0, reference=lambda x, b: softmax(x + b))
case("BiasSoftmax", X, (4,), axis=1, is_inner_broadcast=1, refused="its axis is not the last one")
case("BiasDropout", X, (4,), X, np.array(0.5, np.float32), np.array(False), reference=lambda x, b, s, *_: x + b + s)
case("BiasDropout", X, (4,), seed=3, reference=lambda x, b: x + b)

case("FusedMatMul", (2, 3, 4), (2, 4, 5), alpha=0.3)
case("FusedMatMul", (2, 4, 3), (2, 5, 4), transA=1, transB=1)
case("FusedMatMul", (4, 3), (4, 5), transA=1)
case("FusedMatMul", (3, 2, 4), (2, 4, 5), transBatchA=1)
case("FusedMatMul", (4, 2, 3), (2, 4, 5), transA=1, transBatchA=1)
case("FusedMatMul", (2, 3, 4), (4, 2, 5), transBatchB=1)
case("FusedMatMul", (2, 3, 4), (5, 2, 4), transB=1, transBatchB=1)
case("TransposeMatMul", (2, 4, 3), (2, 5, 4), transA=1, transB=1, alpha=0.5)
for name, settings in {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "LeakyRelu": {"activation_alpha": 0.2},
    "Elu": {"activation_alpha": 0.7},
    "ThresholdedRelu": {"activation_alpha": 0.3},
    "HardSigmoid": {"activation_alpha": 0.4, "activation_beta": 0.3},
    "Selu": {"activation_alpha": 1.2, "activation_gamma": 0.7},
}.items():
    case("FusedGemm", (2, 3), (3, 4), (4,), activation=name, **settings)
case("FusedGemm", (3, 2), (4, 3), (2, 1), activation="Relu", alpha=0.5, beta=0.3, transA=1, transB=1)
case("FusedGemm", (2, 3), (3, 4), activation="Tanh")
case("FusedGemm", (2, 3), (3, 4), (4,), activation="Celu", refused="its activation 'Celu' is not known")
case("FusedGemm", (2, 3), (3, 4), (4,), activation="LeakyRelu", refused="activation_alpha is missing")
case("GemmFastGelu", (2, 3), (3, 4), (4,), reference=lambda x, w, b: tanh_form(x @ w + b))
case("GemmFastGelu", (2, 3), (3, 4), reference=lambda x, w: tanh_form(x @ w))

IMAGE, KERNEL = (2, 2, 5, 5), (4, 2, 3, 3)
case("FusedConv", IMAGE, KERNEL, (4,), activation="Relu")
case("FusedConv", IMAGE, KERNEL, activation="Tanh", pads=[1, 1, 1, 1], strides=[2, 2])
case("FusedConv", IMAGE, KERNEL, (4,), activation="Sigmoid", dilations=[2, 2], kernel_shape=[3, 3])
case("FusedConv", IMAGE, (4, 1, 3, 3), (4,), activation="LeakyRelu", activation_params=[0.2], group=2)
case("FusedConv", IMAGE, KERNEL, (4,), activation="HardSigmoid", activation_params=[0.3, 0.4], auto_pad="SAME_UPPER")
case("FusedConv", IMAGE, KERNEL, (4,), activation="Clip", activation_params=[-0.5, 0.5])
case("FusedConv", IMAGE, KERNEL, (4,), (2, 4, 3, 3), activation="Relu")
case("FusedConv", IMAGE, KERNEL, (4,), (2, 4, 3, 3))
case("FusedConv", IMAGE, KERNEL, (4,), activation="HardSwish", refused="its activation 'HardSwish' with 0 parameters")

case("LayerNormalization", X, (4,), (4,), plain=True, opsets=(11, 13))
case("LayerNormalization", X, (4,), plain=True, epsilon=0.1, opsets=(13,))
case("LayerNormalization", X, (3, 4), (3, 4), plain=True, axis=1, outputs=(0, 1, 2), opsets=(13,))
case("LayerNormalization", X, (4,), (4,), plain=True, axis=2, stash_type=1, opsets=(13,))
case("SimplifiedLayerNormalization", X, (4,), plain=True, epsilon=0.1)
case("SimplifiedLayerNormalization", X, (4,), plain=True, axis=-1, stash_type=1)
case("SimplifiedLayerNormalization", X, (3, 4), plain=True, axis=1, outputs=(0, 1))
case("SkipLayerNormalization", X, X, (4,))
case("SkipLayerNormalization", X, X, (4,), (4,), (4,), epsilon=0.1, outputs=(0, 3))
case("SkipLayerNormalization", X, (1, 3, 4), (4,), (4,))
case("SkipLayerNormalization", X, X, (4,), outputs=(0, 1), refused="its outputs mean and inv_std_var are not known")
case("SkipSimplifiedLayerNormalization", X, X, (4,))
case(
    "SkipSimplifiedLayerNormalization", X, X, (4,), (4,), epsilon=0.1, outputs=(0, 3), broken="1.19",
    reference=lambda x, s, g, b: [root_mean_square(x + s + b, 0.1) * g, x + s + b],
)  # fmt: skip
IDS, SEGMENTS = integers([1, 2, 2], [0, 1, 3]), integers([0, 0, 1], [0, 1, 1])
MASK, PLACED = integers([1, 1, 0], [1, 1, 1]), integers([1, 0, 3], [2, 2, 5])
TABLES = ((5, 4), (6, 4))
case("EmbedLayerNormalization", IDS, None, *TABLES, None, (4,), (4,), epsilon=0.1, outputs=(0, 1))
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), MASK, outputs=(0, 1))
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), MASK, outputs=(0, 1, 2), mask_index_type=1)
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), None, PLACED, outputs=(0, 1))

ROWS, QKV = (2, 3, 8), (8, 24)
CLEAR = integers([1, 1, 0], [1, 0, 1])
case("Attention", ROWS, QKV, (24,), num_heads=2)
case(
    "Attention",
    ROWS,
    QKV,
    num_heads=4,
    scale=0.7,
    broken="1",
    reference=lambda x, w: attended(*np.split(x @ w, 3, -1), 4, 0.7),
)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2, mask_filter_value=-1.5)
case("Attention", ROWS, QKV, (24,), num_heads=2, unidirectional=1)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2, unidirectional=1)
case("Attention", ROWS, QKV, (24,), np.stack([MASK, CLEAR, MASK], 1), num_heads=2)
case("Attention", ROWS, QKV, (24,), integers(2, 3), num_heads=2)
case("Attention", ROWS, QKV, (24,), integers(2, 3, 1, 0), num_heads=2)
case("Attention", ROWS, (8, 20), (20,), num_heads=2, qkv_hidden_sizes=[8, 8, 4])
case("Attention", ROWS, QKV, (24,), None, None, (2, 2, 3, 3), num_heads=2)
case("Attention", ROWS, QKV, (24,), num_heads=2, do_rotary=0, past_present_share_buffer=0)
case("Attention", ROWS, QKV, (24,), num_heads=2, do_rotary=1, refused="attribute do_rotary = 1")
case("Attention", ROWS, QKV, (24,), None, (2, 2, 2, 2, 4), num_heads=2, refused="it has a past")
OTHERS = (2, 4, 8)
case("MultiHeadAttention", ROWS, OTHERS, OTHERS, num_heads=2)
case("MultiHeadAttention", ROWS, OTHERS, OTHERS, (24,), num_heads=4, scale=0.7, outputs=(0, 1, 2))
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, CLEAR, num_heads=2, mask_filter_value=-2.0)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, np.stack([MASK, CLEAR, MASK], 1), num_heads=2)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, integers(2, 3), num_heads=2)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, None, (2, 2, 3, 3), num_heads=2, unidirectional=1)
case(
    "MultiHeadAttention", ROWS, ROWS, ROWS, None, None, (1, 2, 3, 3), num_heads=2, broken="1.19",
    reference=lambda q, k, v, _, __, bias: attended(q, k, v, 2, 0.5, bias),
)  # fmt: skip
case("MultiHeadAttention", ROWS, ROWS, (2, 3, 4), num_heads=2)
case("MultiHeadAttention", ROWS, (2, 2, 5, 4), (2, 2, 5, 4), num_heads=2)
PAST = ((2, 2, 2, 4), (2, 2, 2, 4))
case("MultiHeadAttention", ROWS, ROWS, ROWS, (24,), None, None, *PAST, num_heads=2, outputs=(0, 1, 2))
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, None, None, *PAST, num_heads=2, unidirectional=1, outputs=(0, 1, 2))
case(
    "MultiHeadAttention", (2, 3, 2, 3, 4), num_heads=2, broken="1",
    reference=lambda x: attended(*(x[..., i, :].reshape(2, 3, 8) for i in range(3)), 2, 0.5),
)  # fmt: skip
case(
    "MultiHeadAttention", ROWS, (2, 5, 2, 2, 4), num_heads=2, broken="1",
    reference=lambda q, x: attended(q, *(x[..., i, :].reshape(2, 5, 8) for i in range(2)), 2, 0.5),
)  # fmt: skip
case("MultiHeadAttention", (2, 3, 2, 3, 4), None, None, (24,), num_heads=2, refused="a bias beside packed keys")
case("MultiHeadAttention", (2, 3, 24), num_heads=2, refused="packed into one axis with others")
ANGLES = ((6, 2), (6, 2))
PLACES = integers([0, 1, 2], [3, 4, 5], kind=np.int64)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES)
case("RotaryEmbedding", ROWS, integers(2, kind=np.int64), *ANGLES)
case("RotaryEmbedding", (2, 2, 3, 4), PLACES, *ANGLES, interleaved=1)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, num_heads=1, rotary_embedding_dim=4)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, scale=2.0, refused="attribute scale = 2.0")
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, is_packed_batching=1, refused="attribute is_packed_batching = 1")

case("SampleOp", (2, 3), refused="no gradient for it")


def root_mean_square(x, epsilon):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)


def attended(q, k, v, heads, scale, bias=0.0):
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (q, k, v))
    y = softmax(scale * q @ k.swapaxes(2, 3) + bias) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


case("ExpandDims", X, np.array(1, np.int32), reference=np.expand_dims, broken="1.19")
case("ExpandDims", X, np.array(-1, np.int32), reference=np.expand_dims, broken="1.19")
