"""Fitted scikit-learn models that are trained, or refused: their settings as code, by the kind of their targets.

Each line is an expression over scikit-learn's classes; together they name every class that skl2onnx has a converter
for, but for those of :data:`NOT_IN_MODELS`.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import gaussian_process
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_regression
from sklearn.feature_selection import f_regression
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline, make_union
from sklearn.utils import all_estimators

FITTED_ON = 60
"""Rows that a model is fitted on; it is trained on those behind them."""

REGRESSORS = """
LinearRegression()
Ridge()
RidgeCV()
Lasso(alpha=0.01)
LassoCV()
LassoLars(alpha=0.001)
LassoLarsCV()
LassoLarsIC()
Lars()
LarsCV()
ElasticNet(alpha=0.01)
ElasticNetCV()
BayesianRidge()
ARDRegression()
HuberRegressor()
QuantileRegressor(quantile=0.3, alpha=0)
QuantileRegressor(alpha=0)
TheilSenRegressor(random_state=0)
RANSACRegressor(random_state=0)
SGDRegressor(random_state=0)
SGDRegressor(loss='huber', random_state=0)
PassiveAggressiveRegressor(random_state=0)
OrthogonalMatchingPursuit(n_nonzero_coefs=3)
OrthogonalMatchingPursuitCV(max_iter=4)
LinearSVR(random_state=0)
SVR()
SVR(kernel='linear')
SVR(kernel='poly')
SVR(kernel='sigmoid', C=0.1)
SVR(kernel='rbf', gamma=0.1)
NuSVR()
NuSVR(kernel='linear')
PLSRegression()
PLSRegression(n_components=1)
DecisionTreeRegressor(max_depth=4, random_state=0)
DecisionTreeRegressor(criterion='absolute_error', max_depth=4, random_state=0)
ExtraTreeRegressor(max_depth=4, random_state=0)
RandomForestRegressor(5, max_depth=4, random_state=0)
ExtraTreesRegressor(5, max_depth=4, random_state=0)
GradientBoostingRegressor(n_estimators=5, random_state=0)
GradientBoostingRegressor(n_estimators=5, loss='quantile', random_state=0)
HistGradientBoostingRegressor(max_iter=5)
HistGradientBoostingRegressor(max_iter=5, loss='absolute_error')
AdaBoostRegressor(n_estimators=5, random_state=0)
BaggingRegressor(n_estimators=3, random_state=0)
BaggingRegressor(Ridge(), n_estimators=3, max_features=3, random_state=0)
MLPRegressor(hidden_layer_sizes=(6,), max_iter=50, random_state=0)
MLPRegressor(hidden_layer_sizes=(6, 4), activation='tanh', max_iter=50, random_state=0)
MLPRegressor(hidden_layer_sizes=(6,), activation='logistic', max_iter=50, random_state=0)
MLPRegressor(hidden_layer_sizes=(6,), activation='identity', max_iter=50, random_state=0)
GaussianProcessRegressor(alpha=0.5, random_state=0)
GaussianProcessRegressor(2.0 * kernels.RBF() + kernels.WhiteKernel(), optimizer=None, normalize_y=True, random_state=0)
GaussianProcessRegressor(kernels.DotProduct(), alpha=4.0, optimizer=None, random_state=0)
GaussianProcessRegressor(kernels.RationalQuadratic(), alpha=4.0, optimizer=None, random_state=0)
GaussianProcessRegressor(kernels.ExpSineSquared(), alpha=4.0, optimizer=None, random_state=0)
GaussianProcessRegressor(kernels.Matern(), alpha=4.0, optimizer=None, random_state=0)
KNeighborsRegressor(algorithm='brute')
KNeighborsRegressor(weights='distance', algorithm='brute')
KNeighborsRegressor(weights='distance', metric='manhattan')
RadiusNeighborsRegressor(radius=5.0, algorithm='brute')
VotingRegressor([('a', Ridge()), ('b', LinearRegression())])
VotingRegressor([('a', Ridge()), ('b', DecisionTreeRegressor(max_depth=3, random_state=0))], weights=[1, 2])
VotingRegressor([('a', Ridge()), ('b', DecisionTreeRegressor(max_depth=3, random_state=0))], weights=np.array([1, 2]))
VotingRegressor([('a', Ridge()), ('b', 'drop'), ('c', DecisionTreeRegressor(max_depth=3, random_state=0))], weights=[1, 5, 2])
StackingRegressor([('a', Ridge()), ('b', LinearSVR(random_state=0))])
TransformedTargetRegressor(Ridge(), transformer=StandardScaler())
TransformedTargetRegressor(make_pipeline(StandardScaler(), Ridge()), transformer=make_pipeline(MinMaxScaler(), RobustScaler()))
TransformedTargetRegressor(HistGradientBoostingRegressor(max_iter=5), transformer=PowerTransformer())
make_pipeline(PCA(3), TransformedTargetRegressor(Ridge(), func=np.arcsinh, inverse_func=np.sinh))
TransformedTargetRegressor(Ridge(), transformer=QuantileTransformer(n_quantiles=10))
StackingRegressor([('a', Ridge()), ('b', SVR())], final_estimator=LinearRegression(), passthrough=True)
GridSearchCV(Ridge(), {'alpha': [0.1, 1.0]})
FrozenEstimator(Ridge().fit(*DATA))
CastRegressor(Ridge())
"""  # noqa: E501

POSITIVE = """
PoissonRegressor()
GammaRegressor()
TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp)
TransformedTargetRegressor(func=np.log1p, inverse_func=np.expm1)
TransformedTargetRegressor(Ridge(), transformer=PowerTransformer('box-cox'))
TweedieRegressor(power=1.5)
TweedieRegressor(power=1)
TweedieRegressor(power=0)
HistGradientBoostingRegressor(loss='poisson', max_iter=5)
make_pipeline(StandardScaler(), PoissonRegressor())
"""

TWO_NUMBERS = """
GaussianProcessRegressor(alpha=0.5, random_state=0)
KNeighborsRegressor(weights='distance')
TransformedTargetRegressor(Ridge(), transformer=StandardScaler())
LinearRegression()
Ridge()
PLSRegression()
MultiTaskLasso(alpha=0.01)
MultiTaskLassoCV()
MultiTaskElasticNet(alpha=0.01)
MultiTaskElasticNetCV()
DecisionTreeRegressor(max_depth=4, random_state=0)
RandomForestRegressor(5, max_depth=4, random_state=0)
MLPRegressor(hidden_layer_sizes=(6,), max_iter=50, random_state=0)
MultiOutputRegressor(Ridge())
MultiOutputRegressor(SVR())
"""

CLASSIFIERS = """
LogisticRegression()
LogisticRegression(fit_intercept=False)
LogisticRegressionCV(use_legacy_attributes=False, l1_ratios=(0.0,), scoring='accuracy')
RidgeClassifier()
RidgeClassifierCV()
Perceptron(random_state=1)
PassiveAggressiveClassifier(random_state=0)
SGDClassifier(random_state=0)
SGDClassifier(loss='log_loss', alpha=1.0, random_state=0)
SGDClassifier(loss='log_loss', random_state=0)
SGDClassifier(loss='modified_huber', alpha=1.0, random_state=0)
LinearSVC(random_state=0)
SVC()
SVC(kernel='linear')
SVC(kernel='poly')
SVC(kernel='sigmoid')
SVC(probability=True, random_state=0)
SVC(kernel='linear', probability=True, random_state=0)
SVC(decision_function_shape='ovo')
SVC(break_ties=True)
NuSVC()
NuSVC(probability=True, random_state=0)
LinearDiscriminantAnalysis()
QuadraticDiscriminantAnalysis()
GaussianNB()
DecisionTreeClassifier(max_depth=4, random_state=0)
ExtraTreeClassifier(max_depth=4, random_state=0)
RandomForestClassifier(5, max_depth=4, random_state=0)
ExtraTreesClassifier(5, max_depth=4, random_state=0)
GradientBoostingClassifier(n_estimators=3, random_state=0)
GradientBoostingClassifier(n_estimators=3, init='zero', random_state=0)
HistGradientBoostingClassifier(max_iter=3)
AdaBoostClassifier(n_estimators=5, random_state=0)
AdaBoostClassifier(LogisticRegression(), n_estimators=5, random_state=0)
AdaBoostClassifier(LinearSVC(random_state=0), n_estimators=5, random_state=0)
BaggingClassifier(n_estimators=3, random_state=0)
BaggingClassifier(LogisticRegression(), n_estimators=3, max_features=3, random_state=0)
BaggingClassifier(SVC(probability=True, random_state=0), n_estimators=3, random_state=0)
BaggingClassifier(LinearSVC(random_state=0), n_estimators=3, random_state=0)
MLPClassifier((6,), max_iter=50, random_state=0)
MLPClassifier((6, 4), activation='tanh', max_iter=50, random_state=0)
MLPClassifier((6,), activation='logistic', max_iter=50, random_state=0)
GaussianProcessClassifier(random_state=0)
GaussianProcessClassifier(2.0 * kernels.Matern() + kernels.DotProduct() + kernels.WhiteKernel(), optimizer=None, random_state=0)
KNeighborsClassifier()
KNeighborsClassifier(weights='distance')
KNeighborsClassifier(weights='distance', algorithm='brute', p=3)
KNeighborsClassifier(weights='distance', algorithm='brute', metric='cosine')
RadiusNeighborsClassifier(radius=5.0)
RadiusNeighborsClassifier(radius=2.0, weights='distance', outlier_label=0)
CalibratedClassifierCV(LogisticRegression(), cv=2)
CalibratedClassifierCV(LinearDiscriminantAnalysis(), cv=2)
CalibratedClassifierCV(GaussianNB(), method='isotonic', cv=3)
CalibratedClassifierCV(LinearSVC(random_state=0), method='isotonic', cv=2)
CalibratedClassifierCV(LogisticRegression(), method='temperature', cv=2)
CalibratedClassifierCV(GaussianNB(), method='temperature', cv=2)
CalibratedClassifierCV(LinearSVC(random_state=0), cv=2, ensemble=False)
CalibratedClassifierCV(make_pipeline(StandardScaler(), SVC()), cv=2)
OneVsRestClassifier(LogisticRegression())
OneVsRestClassifier(DecisionTreeClassifier(max_depth=3, random_state=0))
OneVsRestClassifier(LinearSVC(random_state=0))
OneVsRestClassifier(SVC())
OneVsRestClassifier(SVC(probability=True, random_state=0))
OneVsOneClassifier(LogisticRegression())
OneVsOneClassifier(LinearSVC(random_state=0))
OneVsOneClassifier(GaussianNB())
OutputCodeClassifier(LogisticRegression(), random_state=0)
VotingClassifier([('a', LogisticRegression()), ('b', GaussianNB())], voting='soft', flatten_transform=False)
VotingClassifier([('a', LogisticRegression()), ('b', GaussianNB())], voting='soft', weights=[1, 2])
VotingClassifier([('a', LogisticRegression()), ('b', GaussianNB())])
StackingClassifier([('a', LogisticRegression()), ('b', GaussianNB())])
StackingClassifier([('a', LinearSVC(random_state=0)), ('b', DecisionTreeClassifier(max_depth=3, random_state=0))], passthrough=True)
StackingClassifier([('a', make_pipeline(StandardScaler(), SVC())), ('b', KNeighborsClassifier(weights='distance'))])
StackingClassifier([('a', LogisticRegression()), ('b', GaussianNB())], stack_method='predict')
SelfTrainingClassifier(LogisticRegression())
GridSearchCV(LogisticRegression(), {'C': [0.1, 1.0]})
make_pipeline(StandardScaler(), LogisticRegression())
make_pipeline(NeighborhoodComponentsAnalysis(3, max_iter=5, random_state=0), LogisticRegression())
make_pipeline(StandardScaler(), MLPClassifier((6,), max_iter=50, random_state=0))
make_pipeline(StandardScaler(), PCA(3), SVC(probability=True, random_state=0))
"""  # noqa: E501

GAPPED_CLASSIFIERS = """
DecisionTreeClassifier(max_depth=4, random_state=0)
RandomForestClassifier(5, max_depth=4, random_state=0)
ExtraTreesClassifier(5, max_depth=4, random_state=0)
HistGradientBoostingClassifier(max_iter=3)
make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())
"""

COUNTS = """
MultinomialNB()
ComplementNB()
ComplementNB(norm=True)
BernoulliNB(binarize=1.5)
CategoricalNB(min_categories=5)
"""

BINARY = """
TunedThresholdClassifierCV(LogisticRegression())
FixedThresholdClassifier(LogisticRegression(), threshold=0.3)
GridSearchCV(make_pipeline(StandardScaler(), SVC()), {'svc__C': [0.1, 1.0]})
"""

TWO_LABELS = """
MultiOutputClassifier(LogisticRegression())
OneVsRestClassifier(LogisticRegression())
MLPClassifier((6,), max_iter=50, random_state=0)
DecisionTreeClassifier(max_depth=4, random_state=0)
"""

THREE_LABELS = """
RidgeClassifier()
RidgeClassifierCV()
ExtraTreeClassifier(max_depth=4, random_state=0)
RandomForestClassifier(5, max_depth=4, random_state=0)
ExtraTreesClassifier(5, max_depth=4, random_state=0)
KNeighborsClassifier()
RadiusNeighborsClassifier(radius=5.0)
OneVsRestClassifier(LinearSVC(random_state=0))
OneVsRestClassifier(SVC())
OneVsRestClassifier(DecisionTreeClassifier(max_depth=3, random_state=0))
OneVsRestClassifier(RidgeClassifier())
OneVsRestClassifier(LinearRegression())
ClassifierChain(LogisticRegression())
ClassifierChain(LogisticRegression(), order=[2, 0, 1], chain_method='predict_proba')
ClassifierChain(LogisticRegression(), chain_method='decision_function')
ClassifierChain(SVC(), order=[1, 2, 0])
ClassifierChain(DecisionTreeClassifier(max_depth=3, random_state=0), order=[2, 0, 1])
make_pipeline(StandardScaler(), ClassifierChain(LogisticRegression(), order=[2, 0, 1]))
make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression()))
make_pipeline(StandardScaler(), MLPClassifier((6,), max_iter=50, random_state=0))
"""

SEVERAL_LABELS = """
MultiOutputClassifier(LogisticRegression())
MultiOutputClassifier(LinearSVC(random_state=0))
MultiOutputClassifier(RidgeClassifier())
MultiOutputClassifier(SVC(probability=True, random_state=0))
MultiOutputClassifier(SVC())
MultiOutputClassifier(GaussianNB())
MultiOutputClassifier(DecisionTreeClassifier(max_depth=3, random_state=0))
MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3))
MultiOutputClassifier(MLPClassifier((6,), max_iter=50, random_state=0))
MultiOutputClassifier(make_pipeline(StandardScaler(), LogisticRegression()))
make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression()))
"""
"""Fitted to labels that are 0 or 1, and to others."""

LABELS_OF_TREES = """
DecisionTreeClassifier(max_depth=4, random_state=0)
ExtraTreeClassifier(max_depth=4, random_state=0)
RandomForestClassifier(5, max_depth=4, random_state=0)
ExtraTreesClassifier(5, max_depth=4, random_state=0)
KNeighborsClassifier()
KNeighborsClassifier(weights='distance')
RadiusNeighborsClassifier(radius=5.0, weights='distance')
make_pipeline(StandardScaler(), PCA(3), DecisionTreeClassifier(max_depth=4, random_state=0))
"""

BEFORE_RIDGE = """
StandardScaler()
StandardScaler(with_mean=False)
StandardScaler(with_std=False)
MinMaxScaler()
MinMaxScaler((-1, 1), clip=True)
MaxAbsScaler()
RobustScaler()
Normalizer()
Normalizer('l1')
Normalizer('max')
PowerTransformer()
PowerTransformer(standardize=False)
QuantileTransformer(n_quantiles=10)
QuantileTransformer(n_quantiles=10, output_distribution='normal')
Binarizer()
KBinsDiscretizer(4, encode='onehot-dense', quantile_method='linear')
KBinsDiscretizer(4, encode='ordinal', strategy='uniform')
PolynomialFeatures()
PolynomialFeatures(interaction_only=True, include_bias=False)
FunctionTransformer()
FunctionTransformer(np.cos)
FunctionTransformer(np.sign)
make_pipeline(FunctionTransformer(np.abs), StandardScaler(), FunctionTransformer(np.tanh))
make_pipeline(MinMaxScaler((0.1, 2), clip=True), FunctionTransformer(np.log1p))
make_pipeline(MinMaxScaler((0.1, 2), clip=True), make_union(FunctionTransformer(np.log), FunctionTransformer(np.sqrt), FunctionTransformer(np.reciprocal), FunctionTransformer(np.square)))
make_pipeline(StandardScaler(), make_union(FunctionTransformer(np.sin), FunctionTransformer(np.exp), FunctionTransformer(np.arcsinh)))
PCA(3)
PCA(3, whiten=True)
IncrementalPCA(3)
TruncatedSVD(3, random_state=0)
KernelPCA(3)
KernelPCA(3, kernel='rbf')
GaussianRandomProjection(3, random_state=0)
RandomTreesEmbedding(3, max_depth=3, random_state=0)
SelectKBest(f_regression, k=3)
SelectPercentile(f_regression, percentile=60)
SelectFpr(f_regression, alpha=0.9)
SelectFdr(f_regression, alpha=0.99)
SelectFwe(f_regression, alpha=0.9)
GenericUnivariateSelect(f_regression, param=60)
SelectFromModel(Ridge())
RFE(Ridge(), n_features_to_select=3)
RFECV(Ridge())
VarianceThreshold()
KMeans(3, n_init=1, random_state=0)
MiniBatchKMeans(3, n_init=1, random_state=0)
make_pipeline(StandardScaler(), make_union(PCA(2), KMeans(3, n_init=1, random_state=0)))
BisectingKMeans(3, random_state=0)
SplineTransformer(n_knots=3)
SplineTransformer(extrapolation='error')
make_pipeline(StandardScaler(), SplineTransformer(n_knots=4, degree=2, extrapolation='linear', include_bias=False))
make_pipeline(StandardScaler(), QuantileTransformer(n_quantiles=10, output_distribution='normal'))
Nystroem(n_components=5, random_state=0)
make_pipeline(StandardScaler(), Nystroem(kernel='poly', degree=2, n_components=5, random_state=0))
make_pipeline(StandardScaler(), RBFSampler(n_components=5, random_state=0))
make_pipeline(MinMaxScaler(clip=True), make_union(SkewedChi2Sampler(n_components=5, random_state=0), AdditiveChi2Sampler()))
make_union(StandardScaler(), PCA(2))
make_union(StandardScaler(), make_pipeline(MinMaxScaler(), PolynomialFeatures()))
make_column_transformer((StandardScaler(), [0, 1]), (MinMaxScaler(), [2, 3]))
make_column_transformer((StandardScaler(), slice(0, 3)), remainder='passthrough')
ReplaceTransformer()
CastTransformer()
KNeighborsTransformer(n_neighbors=3, algorithm='brute')
"""  # noqa: E501
"""Each stands before ``Ridge()`` in a pipeline."""

WITH_GAPS = """
DecisionTreeRegressor(max_depth=4, random_state=0)
RandomForestRegressor(5, max_depth=4, random_state=0)
HistGradientBoostingRegressor(max_iter=5)
make_pipeline(SimpleImputer(), Ridge())
make_pipeline(SimpleImputer(strategy='median'), StandardScaler(), Ridge())
make_pipeline(SimpleImputer(strategy='constant', fill_value=-1.0), Ridge())
make_pipeline(SimpleImputer(add_indicator=True), Ridge())
make_pipeline(SimpleImputer(add_indicator=True, strategy='constant', fill_value=-1.0), StandardScaler(), Ridge())
make_pipeline(make_union(SimpleImputer(), MissingIndicator()), Ridge())
make_column_transformer((SimpleImputer(add_indicator=True), [0, 1]), (KNNImputer(), [2, 3, 4])) >> Ridge()
make_pipeline(KNNImputer(), Ridge())
make_pipeline(KNNImputer(n_neighbors=2, add_indicator=True), StandardScaler(), Ridge())
make_pipeline(KNNImputer(weights='distance'), Ridge())
TransformedTargetRegressor(HistGradientBoostingRegressor(max_iter=5), transformer=StandardScaler())
"""

WHOLE = """
make_pipeline(OneHotEncoder(sparse_output=False), Ridge())
make_pipeline(OneHotEncoder(), Ridge())
make_pipeline(OrdinalEncoder(), Ridge())
make_pipeline(TargetEncoder(random_state=0), Ridge())
make_column_transformer((OneHotEncoder(), [0, 1]), (StandardScaler(), [2, 3])) >> Ridge()
"""

FRAMES = """
Ridge()
make_column_transformer((StandardScaler(), ['a', 'b']), (MinMaxScaler(), ['c', 'd'])) >> Ridge()
make_column_transformer((StandardScaler(), ['c', 'a']), remainder='passthrough') >> Ridge()
"""

MIXED_FRAMES = """
make_column_transformer((OneHotEncoder(), ['kind']), (StandardScaler(), ['a', 'b'])) >> Ridge()
make_column_transformer((OneHotEncoder(handle_unknown='ignore'), ['kind']), remainder='drop') >> Ridge()
make_column_transformer((OneHotEncoder(drop='first'), ['kind', 'size']), (MinMaxScaler(), ['a'])) >> Ridge()
make_column_transformer((make_pipeline(SimpleImputer(strategy='most_frequent'), OneHotEncoder()), ['size', 'kind']), (make_pipeline(SimpleImputer(), StandardScaler()), ['a', 'b'])) >> Ridge()
make_column_transformer((make_pipeline(SimpleImputer(strategy='constant', fill_value='?'), OrdinalEncoder()), ['size']), (StandardScaler(), ['a', 'b'])) >> Ridge()
make_column_transformer((OrdinalEncoder(), ['kind']), (StandardScaler(), ['a', 'b'])) >> HistGradientBoostingRegressor(max_iter=3)
make_column_transformer((TargetEncoder(random_state=0), ['kind', 'size']), (StandardScaler(), ['a', 'b'])) >> Ridge()
make_column_transformer((OneHotEncoder(), ['kind']), (PCA(1), ['a', 'b'])) >> MLPRegressor(hidden_layer_sizes=(6,), max_iter=50, random_state=0)
make_column_transformer((OneHotEncoder(), ['kind']), (StandardScaler(), ['a', 'b'])) >> SVR()
make_column_transformer((StandardScaler(), ['a', 'b'])) >> Ridge()
VotingRegressor([('a', make_pipeline(make_column_transformer((OneHotEncoder(), ['kind']), (StandardScaler(), ['a'])), Ridge()))])
"""  # noqa: E501

MIXED_CLASSES = """
make_column_transformer((OneHotEncoder(), ['kind']), (StandardScaler(), ['a', 'b'])) >> LogisticRegression()
make_column_transformer((OneHotEncoder(), ['kind']), (StandardScaler(), ['a', 'b'])) >> RandomForestClassifier(5, max_depth=4, random_state=0)
make_column_transformer((OneHotEncoder(sparse_output=False), ['kind']), remainder='drop') >> GaussianNB()
"""  # noqa: E501

TEXTS = """
make_pipeline(TfidfVectorizer(), Ridge())
make_pipeline(CountVectorizer(), TfidfTransformer(), Ridge())
make_pipeline(CountVectorizer(ngram_range=(1, 2)), Ridge())
make_pipeline(HashingVectorizer(n_features=16), Ridge())
"""

DETECTORS = """
OneClassSVM()
OneClassSVM(kernel='linear', nu=0.1)
OneClassSVM(kernel='poly', nu=0.2)
OneClassSVM(kernel='sigmoid', nu=0.2)
SGDOneClassSVM(random_state=0)
IsolationForest(n_estimators=3, random_state=0)
IsolationForest(n_estimators=5, max_features=3, contamination=0.2, random_state=0)
LocalOutlierFactor(novelty=True)
LocalOutlierFactor(n_neighbors=5, algorithm='brute', contamination=0.2, novelty=True)
LocalOutlierFactor(metric='manhattan', novelty=True)
EllipticEnvelope(random_state=0)
make_pipeline(StandardScaler(), OneClassSVM())
make_pipeline(StandardScaler(), PCA(3), IsolationForest(n_estimators=3, random_state=0))
"""

NEITHER = """
StandardScaler()
KMeans(3, n_init=1, random_state=0)
GaussianMixture(2, random_state=0)
BayesianGaussianMixture(n_components=2, random_state=0)
LocalOutlierFactor()
NearestNeighbors()
"""

NOT_IN_MODELS = {
    "DictVectorizer": "takes dictionaries",
    "FeatureHasher": "takes dictionaries",
    "KernelCenterer": "is a part of kernel methods",
    "LabelBinarizer": "takes targets",
    "LabelEncoder": "takes targets",
    "_ConstantPredictor": "is a part of one vs rest",
}
"""Classes with a converter that no setting names, and why."""


@dataclass(frozen=True)
class Setting:
    """A fitted model to train.

    Attributes
    ----------
    group : str
        Heading of the table that it stands in.
    targets : str
        What it is fitted to, a key of :data:`TARGETS`, and the kind of ``X`` by that of :data:`DATA`.
    code : str
    data : str
    """

    group: str
    code: str
    targets: str
    data: str = "numbers"

    @property
    def key(self) -> str:
        """What the setting is known by in the file of outcomes."""
        kind = "" if self.targets == "number" else f", {self.targets}"
        return f"{self.code}{kind}{'' if self.data == 'numbers' else f', {self.data}'}"

    def fitted(self) -> Any:
        """Return the model, fitted."""
        X, y = self.rows(slice(0, FITTED_ON))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(self.expression(), namespace()).fit(X, y)

    def rows(self, chosen: slice) -> tuple[Any, np.ndarray]:
        """Return some rows of the data."""
        X = DATA[self.data]
        return (X.iloc[chosen] if hasattr(X, "iloc") else X[chosen]), TARGETS[self.targets][chosen]

    def expression(self) -> str:
        """Return the code with ``a >> b`` as the pipeline that it stands for."""
        before, arrow, after = self.code.partition(" >> ")
        return f"make_pipeline({before}, {after})" if arrow else self.code


@functools.cache
def namespace() -> dict[str, Any]:
    """Return what the code of the settings may name."""
    from skl2onnx.sklapi import CastRegressor, CastTransformer, ReplaceTransformer

    own = [CastRegressor, CastTransformer, ReplaceTransformer, FrozenEstimator]
    helpers = [make_pipeline, make_union, make_column_transformer]
    names = dict(all_estimators()) | {thing.__name__: thing for thing in (*own, *helpers)}
    names |= {"np": np, "f_regression": f_regression}
    return names | {"kernels": gaussian_process.kernels, "DATA": (DATA["numbers"], TARGETS["number"])}


def _data() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    X, number = make_regression(100, 5, noise=20, random_state=0)
    number /= 100
    number[FITTED_ON:] += 0.3 * X[FITTED_ON:, 0] + 0.2  # the rows that come later are not like the first
    binary = (number > np.median(number)).astype(int)
    three = np.digitize(number, np.quantile(number, [0.33, 0.67]))
    X = X.astype(np.float32)
    gaps = np.where(rng.random(X.shape) < 0.1, np.float32(np.nan), X)
    whole = rng.integers(0, 3, (100, 4)).astype(np.float32)
    counts = np.clip(np.round(X + 2), 0, 4)
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    kinds = np.array(["red", "green", "blue"])[whole[:, 0].astype(int)]
    sizes = np.array(["small", "large", np.nan], object)[whole[:, 1].astype(int)]
    weights = np.where(X[:, 0] > 0, "light", "heavy")
    data = {
        "numbers": X,
        "small": X / 10,
        "counts": counts,
        "gaps": gaps,
        "whole numbers": whole,
        "frame": frame,
        "mixed frame": frame[["a", "b"]].assign(kind=kinds, size=sizes),
        "texts": [f"A {size} {kind} box, {weight}" for size, kind, weight in zip(sizes, kinds, weights, strict=True)],
    }
    targets = {
        "number": number,
        "positive": np.exp(number / 2),
        "two numbers": np.stack([number, 0.5 - number + X[:, 1]], axis=1),
        "binary": binary,
        "three classes": three,
        "outliers": np.where(np.abs(number) > np.quantile(np.abs(number), 0.7), -1, 1),
        "two labels": np.stack([binary, (X[:, 1] + number > 0).astype(int)], axis=1),
        "three labels": np.stack([binary, X[:, 1] + number > 0, X[:, 2] - number > 0], axis=1).astype(int),
        "labels of several classes": np.array(["low", "high", "top"])[np.stack([binary, three], axis=1)],
    }
    return data, targets


DATA, TARGETS = _data()


def _settings() -> list[Setting]:
    def of(code: str, group: str, targets: str, data: str = "numbers") -> list[Setting]:
        return [Setting(group, line, targets, data) for line in code.strip().splitlines()]

    ridge = "\n".join(f"make_pipeline({line}, Ridge())" for line in BEFORE_RIDGE.strip().splitlines())
    found = of(REGRESSORS, "Regressors", "number") + of(POSITIVE, "Regressors", "positive")
    found += of(TWO_NUMBERS, "Regressors", "two numbers")
    for targets in ("binary", "three classes"):
        found += of(CLASSIFIERS, "Classifiers", targets) + of(COUNTS, "Classifiers", targets, "counts")
        found += of(GAPPED_CLASSIFIERS, "Classifiers", targets, "gaps")
    found += of(BINARY, "Classifiers", "binary")
    found += of(TWO_LABELS, "Several labels", "two labels") + of(THREE_LABELS, "Several labels", "three labels")
    found += of(SEVERAL_LABELS, "Several labels", "three labels")
    found += of(SEVERAL_LABELS + LABELS_OF_TREES.lstrip(), "Several labels", "labels of several classes")
    found += of(ridge, "Pipelines", "number") + of(WITH_GAPS, "Pipelines", "number", "gaps")
    found += of(WHOLE, "Pipelines", "number", "whole numbers") + of(FRAMES, "Pipelines", "number", "frame")
    found += of(MIXED_FRAMES, "Tables with text", "number", "mixed frame")
    for targets in ("binary", "three classes"):
        found += of(MIXED_CLASSES, "Tables with text", targets, "mixed frame")
    found += of(TEXTS, "Tables with text", "number", "texts")
    found += of(DETECTORS, "Detectors of outliers", "outliers")
    return found + of(NEITHER, "Others", "number")


SETTINGS = {setting.key: setting for setting in _settings()}
"""Every setting by its key."""
