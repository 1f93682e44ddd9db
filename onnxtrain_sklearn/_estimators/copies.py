"""Copies of an estimator: clones, deep copies, and pickles, which load even if their device or engine is missing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from .._callbacks.base import ACTIVE
from .._fitted.model import is_estimator
from .._graph.files import without_program
from .._runtime import devices, distributions
from .._runtime.devices import Device
from .._support.parametrized import Parametrized, copied
from .._training.compiled_pass import is_usable
from ..exceptions import warn
from .callback_support import SET
from .stored import plain, restored

if TYPE_CHECKING:
    from typing_extensions import Self


def _without_programs(state: dict[str, Any]) -> dict[str, Any]:
    """Return parameters whose model can be copied."""
    return state | {"model": without_program(state["model"])} if "model" in state else state


class Copied(Parametrized):
    """An estimator whose clones keep a given fitted model, and whose pickles hold the run as plain data."""

    engine: str
    device_: str

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy; a fitted model among the parameters stays fitted."""
        parameters = _without_programs(self.get_params(deep=False))
        copies: dict[str, Any] = {
            n: v if n == "model" and is_estimator(v) else copied(v) for n, v in parameters.items()
        }
        twin = type(self)(**copies)
        for name in ("_metadata_request", "_sklearn_output_config"):
            if name in vars(self):
                setattr(twin, name, copy.deepcopy(vars(self)[name]))
        if SET in vars(self):  # one instance serves all clones, as in scikit-learn
            vars(twin)[SET] = vars(self)[SET]
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: parameters, and the fitted state as plain data."""
        state: dict[str, Any] = _without_programs(super().__getstate__())
        state.pop(ACTIVE, None)  # a callback copies the estimator in training
        return {**state, "_run": plain(state["_run"])} if "_run" in state else state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; if its device or engine is missing, it continues on the CPU or with engine="auto"."""
        super().__setstate__(state)
        if "_run" not in state:
            return
        run = self._run = restored(state["_run"])
        run.device = resumed_device(self, run.device)
        if not is_usable(self.engine):
            _go_on_with(self, f"by the engine {self.engine!r}", engine="auto")


def resumed_device(estimator: object, device: Device) -> Device:
    """Return the device of a loaded estimator, started; the CPU, with a warning, where it cannot be had."""
    found = devices.resumed(device)
    if found is not None:
        return found
    _go_on_with(estimator, f"on {device.providers[0]}", device="cpu", providers=None, provider_options=None)
    cpu = devices.resolve_device()
    vars(estimator)["device_"] = cpu.name
    return cpu


def _go_on_with(estimator: object, was: str, **parameters: object) -> None:
    """Set those of the parameters that the estimator has, and warn of the first."""
    name, value = next(iter(parameters.items()))
    warn(
        f"This {type(estimator).__name__} was trained {was}, which this environment (onnxruntime "
        f"{distributions.version()}) lacks: it goes on with {name}={value!r}."
    )
    vars(estimator).update({name: value for name, value in parameters.items() if hasattr(estimator, name)})
