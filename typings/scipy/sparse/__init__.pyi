from typing import Any

from typing_extensions import TypeIs

from onnxtrain_sklearn._utils.typing import SparseLike

def issparse(x: object) -> TypeIs[SparseLike]: ...
def __getattr__(name: str) -> Any: ...
