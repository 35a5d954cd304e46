"""A stand-in for JAX on a sandbox worker: the few functions of its public interface that a test of chips calls.

It stands for a JAX with a TPU. A JAX that is installed on this machine is used instead, unless the program demands a TPU.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

_HERE = str(Path(__file__).resolve().parent.parent)
_ELSEWHERE = [path for path in sys.path if str(Path(path or ".").resolve()) != _HERE]
_INSTALLED = importlib.machinery.PathFinder.find_spec("jax", _ELSEWHERE)

if _INSTALLED and _INSTALLED.loader and not os.environ.get("JAX_PLATFORMS", "").startswith("tpu"):
    sys.path[:] = _ELSEWHERE
    _MODULE = importlib.util.module_from_spec(_INSTALLED)
    sys.modules["jax"] = _MODULE
    _INSTALLED.loader.exec_module(_MODULE)
else:
    from jax import lax, numpy
    from jax._slice import (
        device_count,
        device_put,
        devices,
        distributed,
        jit,
        local_device_count,
        local_devices,
        pmap,
        process_count,
        process_index,
    )

    def _explain(name: str) -> str:
        return (
            f"the sandbox has no real JAX, and its stand-in has no `{name}`; for the real one on the CPU: "
            f"`{sys.executable} -m pip install jax`"
        )

    def __getattr__(name: str) -> object:
        raise AttributeError(name if name.startswith("__") else _explain(f"jax.{name}"))

    class _MissingModules:
        """Says the same of modules; the last finder, so that those of the stand-in are found first."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.startswith("jax."):
                raise ImportError(_explain(name), name=name)

    sys.meta_path.append(_MissingModules)

__version__ = "0.6.2"
version = SimpleNamespace(__version__=__version__)
