"""Runs on a worker: finds the Python environments with frameworks for TPUs, and their versions, without importing any.

The names of `*.dist-info` folders are the installed packages [PEP 376, 427], their `Requires-Dist` lines the requirements. It
must run under Python 3.8 and import little.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PACKAGES = {
    *("jax", "jaxlib", "libtpu", "libtpu-nightly", "flax", "torch", "torch-xla"),
    *("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "keras"),
}
MOST_ENVIRONMENTS = 8
MOST_FOLDERS = 200
MOST_REQUIREMENTS = 12
LONGEST_METADATA = 1 << 18
FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9._]+?)-(?P<version>[0-9][A-Za-z0-9.+!_]*)(?:-py[0-9.]+)?\.(?:dist|egg)-info$")
REQUIRES = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)(?:\[[^\]]*\])? *(.*)$")
USUAL = ("venv", ".venv", "env", "miniconda3", "anaconda3", "miniforge3", "mambaforge")


def environments(root: str, home: str, named: list[str]) -> list[dict[str, Any]]:
    """Return the environments with such packages: the system's with the user's packages over it, then others, `named` first."""
    own = "python%d.%d" % sys.version_info[:2]
    found = []
    system: dict[str, Any] = {}
    for folder in system_folders(root, home, own):
        system.update(packages_of(folder))
    if system:
        found.append(environment("system", "/usr", own, system))
    for place in places(root, home, named):
        packages: dict[str, Any] = {}
        version = ""
        for folder, python in site_folders(place):
            packages.update(packages_of(folder))
            version = python
        if packages:
            kind = "conda" if os.path.isdir(os.path.join(place, "conda-meta")) else "venv"
            found.append(environment(kind, shown(place, root, home), version, packages))
        if len(found) >= MOST_ENVIRONMENTS:
            break
    return found


def environment(kind: str, path: str, python: str, packages: dict[str, Any]) -> dict[str, Any]:
    """Return one environment as JSON."""
    return {"kind": kind, "path": path, "python": python.replace("python", ""), "packages": packages}


def shown(place: str, root: str, home: str) -> str:
    """Return a path in a form that is the same on all workers: homes may differ."""
    if place == home or place.startswith(home + "/"):
        return "~" + place[len(home) :]
    return place[len(root) :] if root and place.startswith(root + "/") else place


def system_folders(root: str, home: str, own: str) -> Iterator[str]:
    """Yield the package folders of the system's Python, later ones override: Debian's, pip's, the user's."""
    yield root + "/usr/lib/python3/dist-packages"
    for name in ("dist-packages", "site-packages"):
        yield "%s/usr/local/lib/%s/%s" % (root, own, name)
    yield "%s/.local/lib/%s/site-packages" % (home, own)


def places(root: str, home: str, named: list[str]) -> Iterator[str]:
    """Yield folders that may be environments, each once: named ones, usual ones, and those in the home."""
    candidates = [root + "/opt/conda", *(os.path.join(home, name) for name in USUAL)]
    try:
        inside = sorted(name for name in os.listdir(home) if name not in USUAL)[:MOST_FOLDERS]
    except OSError:
        inside = []
    for name in inside:
        candidates += [os.path.join(home, name), os.path.join(home, name, ".venv"), os.path.join(home, name, "venv")]
    seen = set()
    for place in [*named, *candidates]:
        real = os.path.realpath(place)
        is_one = place in named or any(
            os.path.exists(os.path.join(place, mark)) for mark in ("pyvenv.cfg", "conda-meta")
        )
        if is_one and real not in seen:
            seen.add(real)
            yield place


def site_folders(place: str) -> Iterator[tuple[str, str]]:
    """Yield the package folders of an environment with their Python."""
    library = os.path.join(place, "lib")
    try:
        names = sorted(os.listdir(library))
    except OSError:
        return
    for name in names:
        if re.match(r"^python3\.\d+$", name):
            yield os.path.join(library, name, "site-packages"), name


def packages_of(folder: str) -> dict[str, Any]:
    """Return the packages in a folder by name: version and requirements among one another."""
    found = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    for entry in sorted(names):
        match = FOLDER.match(entry)
        name = plain(match.group("name")) if match else ""
        if match and name in PACKAGES:
            version = match.group("version").replace("_", "+")
            found[name] = {"version": version[:60], "requires": requirements(os.path.join(folder, entry, "METADATA"))}
    return found


def plain(name: str) -> str:
    """Return the normalized name of a package [PEP 503]."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(path: str) -> list[str]:
    """Return the requirements of a package on the others: `jaxlib<=0.4.35,>=0.4.34`, perhaps with `; extra == "tpu"`."""
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST_METADATA)
    except OSError:
        return []
    for line in text.partition("\n\n")[0].splitlines():
        match = REQUIRES.match(line)
        if match and plain(match.group(1)) in PACKAGES:
            found.append(("%s %s" % (plain(match.group(1)), match.group(2)))[:200])
    return found[:MOST_REQUIREMENTS]
