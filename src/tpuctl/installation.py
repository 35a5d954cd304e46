"""How tpuctl is installed: its version, its Python, its place, what installed it, and the packages that it needs."""

from __future__ import annotations

import platform
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tpuctl import __version__

# The name of each package, and the module that is imported.
DEPENDENCIES: Final = {
    "google-api-python-client": "googleapiclient",
    "google-auth": "google.auth",
    "click": "click",
    "rich": "rich",
    "pyyaml": "yaml",
}
# What installers of programs leave in the environment that they make for each [pipx 1.2, uv 0.4].
_TOOL_FILES: Final = {"pipx_metadata.json": "pipx", "uv-receipt.toml": "uv tool"}
_AT_LEAST = re.compile(r"([A-Za-z0-9_.-]{1,100}) ?(?:\(?>= ?([0-9.]{1,40}))?")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package that tpuctl needs."""

    name: str
    version: str | None  # None without metadata: it was not installed as a package
    is_importable: bool
    least: str | None  # the lowest version that the metadata of tpuctl accepts; None without metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The tpuctl that runs."""

    version: str
    python: tuple[int, int, int]
    implementation: str  # CPython, PyPy
    system: str
    executable: str
    prefix: str
    is_virtual: bool  # whether `prefix` is a virtual environment
    package: str  # the folder of the package
    is_editable: bool
    installer: str | None  # pip, pipx, uv, uv tool, conda, debian, …; None if it is not known
    dependencies: tuple[Dependency, ...]


def read_installation() -> Installation:
    """Return the installation of the tpuctl that runs. Reads files of the environment only."""
    own: Distribution | None = None
    with suppress(PackageNotFoundError):  # started from a folder on PYTHONPATH
        own = distribution("tpuctl")
    lines = [line for line in (own and own.requires) or () if "extra ==" not in line]
    least = {match[1].lower(): match[2] for line in lines if (match := _AT_LEAST.match(line))}
    return Installation(
        version=__version__,
        python=sys.version_info[:3],
        implementation=platform.python_implementation(),
        system=platform.platform(),
        executable=sys.executable,
        prefix=sys.prefix,
        is_virtual=sys.prefix != sys.base_prefix,
        package=str(Path(__file__).parent),
        is_editable='"editable": true' in _text(own, "direct_url.json"),
        installer=find_installer(Path(sys.prefix), _text(own, "INSTALLER")),
        dependencies=tuple(_dependency(name, module, least.get(name)) for name, module in DEPENDENCIES.items()),
    )


def find_installer(prefix: Path, installer: str) -> str | None:
    """Return what installed tpuctl into an environment, where the file INSTALLER says `installer`. None if it is not known."""
    tool = next((name for file, name in _TOOL_FILES.items() if (prefix / file).is_file()), None)
    return tool or installer.strip()[:100] or None


def _dependency(name: str, module: str, least: str | None) -> Dependency:
    is_importable, version = False, None
    with suppress(ImportError, ValueError):
        is_importable = find_spec(module) is not None
    # Metadata that is missing or broken: what that raises depends on the version of Python.
    with suppress(Exception):
        version = distribution(name).version
    return Dependency(name, version, is_importable, least)


def _text(own: Distribution | None, file: str) -> str:
    return (own and own.read_text(file)) or ""
