"""Expressions over scikit-learn's classes, one fitted pipeline a line, by the kind of their data."""

from __future__ import annotations

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
