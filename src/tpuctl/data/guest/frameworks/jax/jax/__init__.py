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
    from jax._slice import device_count, device_put, distributed, jit, local_device_count, local_devices, pmap

__version__ = "0.6.2"
version = SimpleNamespace(__version__=__version__)
