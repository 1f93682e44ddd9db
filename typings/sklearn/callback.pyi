from collections.abc import Callable
from typing import Any

from typing_extensions import Self

class AutoPropagatedCallback: ...

class CallbackSupportMixin:
    def set_callbacks(self, *callbacks: Any) -> Self: ...

def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]: ...
