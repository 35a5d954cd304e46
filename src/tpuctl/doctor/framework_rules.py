"""Rules about frameworks on the workers: the same on all workers, compatible with each other and with the runtime version.

Requirements are judged by the `pip check` of each environment; only releases of known pairs are compared here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.check.findings import Level, Remedy, RuleResult
from tpuctl.command_text import command_word
from tpuctl.doctor.verdicts import (
    NodeRemedy,
    error,
    group_workers,
    known_on_workers,
    node_rule,
    note,
    on_node,
    run_there,
    verdict,
    warning,
    worker_ranges,
    worker_rule,
    workers_text,
)
from tpuctl.names import last_segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.doctor.doctor_facts import AllWorkersFacts, PythonEnvironment, WorkerReport
    from tpuctl.models.node import Node

_IMAGE = re.compile(r"tpu-vm-tf-(\d+)\.(\d+)\.(\d+)(?:-.*)?")
_TENSORFLOWS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu")
_LIBRARIES = ("libtpu", "libtpu-nightly")


@worker_rule(
    "TPU983",
    "frameworks on the workers",
    lambda report: report.environments,
    "the installed frameworks could not be read",
)
def check_frameworks(environments: tuple[PythonEnvironment, ...], *_: object) -> Iterator[RuleResult]:
    """Look for JAX, jaxlib, libtpu, TensorFlow, PyTorch, torch_xla, Flax and Keras; a note if none of them is installed.

    Versions come from package metadata, without importing a framework, which would take the TPU. Covered are the system's
    Python with the user's own packages, conda, environments named by running jobs or shells, and those in the home.
    """
    if not environments:
        install = run_there("install a framework, such as JAX", 'python3 -m pip install -U "jax[tpu]"')
        yield note(
            "no framework is installed in the system's Python, in conda or in an environment in the home", install
        )


@node_rule("TPU984", "same frameworks on all workers")
def check_same_versions(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Compare the frameworks between the workers: an error for each whose versions differ, with the workers that differ.

    A warning for an environment that only some workers have.
    """
    known = known_on_workers(facts, lambda report: report.environments)
    if len(known) < 2:
        return
    by_path: dict[str, dict[int, PythonEnvironment]] = {}
    for number, environments in known.items():
        for one in environments:
            by_path.setdefault(one.path, {})[number] = one
    for have in by_path.values():
        yield from _compare_environment(have, set(known))


def _compare_environment(have: Mapping[int, PythonEnvironment], workers: set[int]) -> Iterator[RuleResult]:
    """Yield how an environment differs between the workers that have it, and on which workers it is missing."""
    where = next(iter(have.values()))
    if lacking := sorted(workers - set(have)):
        yield warning(
            f"{where.name} has no frameworks here, but does on {workers_text(have)}",
            Remedy("create the same environment there, or remove it if it is not needed"),
            subject=workers_text(lacking),
            why="a program of a slice needs the same packages on all workers",
            facts={"environment": where.path, "workers": lacking},
        )
    for package in sorted({package for one in have.values() for package in one.packages}):
        groups = group_workers({number: one.packages.get(package) for number, one in have.items()})
        if len(groups) == 1:
            continue
        usual = next(version for version, _ in groups if version)
        away = worker_ranges(number for version, numbers in groups if version != usual for number in numbers)
        parts = [f"{version or 'not installed'} on {workers_text(numbers)}" for version, numbers in groups]
        yield error(
            f"`{package}` in {where.name} is {', '.join(parts)}",
            on_node(
                f"install one version on all, here {usual}; it must fit the other packages and the image",
                *("run", "--worker", away, "--", f'{_pip_command(where)} install "{package}=={usual}"'),
            ),
            subject=workers_text(groups[-1][1]),
            why="the workers of a slice run one program: with different versions they wait for each other, or crash",
            facts={
                "package": package,
                "versions": [{"version": version, "workers": numbers} for version, numbers in groups],
            },
        )
    pythons = group_workers({number: one.python for number, one in have.items()})
    if len(pythons) > 1:
        yield warning(
            f"Python in {where.name} is {', '.join(f'{one} on {workers_text(numbers)}' for one, numbers in pythons)}",
            subject=workers_text(pythons[-1][1]),
            why="packages are installed for one version of Python each",
            facts={"pythons": [{"python": version, "workers": numbers} for version, numbers in pythons]},
        )


_BROKEN = re.compile(r"(?P<name>\S+) \S+ (?:has requirement|requires) (?P<other>[A-Za-z0-9._-]+)")


@worker_rule("TPU985", "compatible frameworks", lambda report: report.environments)  # TPU983 says why they are unknown
def check_compatible_versions(environments: tuple[PythonEnvironment, ...], *_: object) -> Iterator[RuleResult]:
    """Check each environment with its own `pip check`, and for pairs of packages that pip does not know to be wrong.

    What pip reports about a framework is an error if it requires another version of a framework, else a warning. An error too
    for a torch_xla of another release than PyTorch, which then lacks symbols [documentation of torch_xla; observed]. A warning
    for a JAX without libtpu, and for two libtpu packages in one environment. A note if pip could not check.
    """
    for one in environments:
        yield from _report_broken(one)
        yield from _check_torch(one)
        yield from _check_libtpu(one)
        if one.unchecked is not None:
            yield note(f"the requirements of the packages in {one.name} were not checked: {one.unchecked}")


def _report_broken(one: PythonEnvironment) -> Iterator[RuleResult]:
    for line in one.broken:
        match = _BROKEN.match(line)
        if match is None or (name := _plain(match["name"])) not in one.packages:
            continue
        yield verdict(
            Level.ERROR if _plain(match["other"]) in one.packages else Level.WARNING,
            f"`pip check` in {one.name}: {line.rstrip('.')}",
            _install_remedy(one, f"{name}=={one.packages[name].partition('+')[0]}"),
            why="an import fails, or the program crashes at the first computation",
            facts={"environment": one.path, "package": name},
        )


def _plain(name: str) -> str:
    """Return the normalized name of a package [PEP 503]."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _check_torch(one: PythonEnvironment) -> Iterator[RuleResult]:
    torch, torch_xla = one.packages.get("torch"), one.packages.get("torch-xla")
    if torch is None or torch_xla is None:
        return
    left, right = release_numbers(torch), release_numbers(torch_xla)
    if left and right and left[:2] != right[:2]:
        wanted = f"{left[0]}.{left[1]}"
        yield error(
            f"torch {torch} and torch-xla {torch_xla} in {one.name} are of different releases",
            _install_remedy(one, f"torch~={wanted}.0", f"torch_xla[tpu]~={wanted}.0"),
            why="torch_xla is built for one release of PyTorch: with another its import fails (`undefined symbol`)",
            facts={"torch": torch, "torch-xla": torch_xla},
        )


def _check_libtpu(one: PythonEnvironment) -> Iterator[RuleResult]:
    versions = {name: one.packages[name] for name in _LIBRARIES if name in one.packages}
    if len(versions) > 1:
        remove = f"{_pip_command(one)} uninstall -y libtpu libtpu-nightly"
        yield warning(
            f"{' and '.join(f'{name} {version}' for name, version in versions.items())} are both in {one.name}",
            run_there("remove both, and let the framework install its own", remove),
            why="both contain the same file, `libtpu.so`: the one that was installed last is loaded",
            facts=versions,
        )
    elif not versions and "jax" in one.packages:
        yield warning(
            f"{one.name} has JAX but no libtpu",
            _install_remedy(one, f"jax[tpu]=={one.packages['jax']}"),
            why="JAX finds no TPU then and uses the CPU, unless `TPU_LIBRARY_PATH` names a libtpu",
        )


def _install_remedy(one: PythonEnvironment, *packages: str) -> NodeRemedy:
    quoted = " ".join(f'"{package}"' for package in packages)
    return run_there("install matching versions, the same on all workers", f"{_pip_command(one)} install -U {quoted}")


def _pip_command(one: PythonEnvironment) -> str:
    """Return the pip command of an environment, run by its own Python: a plain `pip` is the first one on PATH."""
    if one.kind == "system":
        return "python3 -m pip"
    return f"{command_word('path', one.path)}/bin/python -m pip"


@worker_rule("TPU986", "TensorFlow and runtime version", lambda report: report.environments)
def check_tensorflow_matches_image(
    environments: tuple[PythonEnvironment, ...], _: WorkerReport, node: Node
) -> Iterator[RuleResult]:
    """Check TensorFlow on a TensorFlow image: the client and the software of the TPU must be of the same release.

    A warning if they differ; a note if no TensorFlow is found, and for a libtpu installed in addition to the image's own: it is
    unverified which of the two TensorFlow loads.
    """
    image = _IMAGE.fullmatch(last_segment(node.runtime_version))
    if image is None:
        return
    wanted, name = (int(image[1]), int(image[2])), image[0]
    found = [(one, package) for one in environments for package in _TENSORFLOWS if package in one.packages]
    for one, package in found:
        version = one.packages[package]
        numbers = release_numbers(version)
        if numbers is None:
            continue
        if numbers[:2] != wanted:
            image_option = "--version=" + re.sub(r"\d+\.\d+\.\d+", version.partition("+")[0], name, count=1)
            yield warning(
                f"{package} {version} in {one.name} is of another release than the image, `{name}`",
                _install_remedy(one, f"{package}=={wanted[0]}.{wanted[1]}.*"),
                on_node("or recreate the node with its image, if the zone offers it", "up", image_option, "--replace"),
                why="client and TPU need the same release of TensorFlow: otherwise programs fail or hang",
                facts={"package": package, "version": version, "runtimeVersion": name},
            )
        for library in (library for library in _LIBRARIES if library in one.packages):
            text = f"{library} {one.packages[library]} in {one.name} is installed beside the libtpu of `{name}`"
            yield note(text, why="it is unverified which of the two TensorFlow loads")
    if not found:
        why = "a TensorFlow image contains the TensorFlow that fits it"
        yield note(f"no TensorFlow is found, although the image is `{name}`", why=why)


_RELEASE = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})(?!\d)")


def release_numbers(version: str) -> tuple[int, ...] | None:
    """Return the release numbers of a version, like `(0, 4, 35)`. None if it is not a version."""
    match = _RELEASE.match(version.strip().lower())
    return tuple(map(int, match[1].split("."))) if match else None


def is_older(version: str, least: str) -> bool:
    """Return whether the release of a version is certainly older than another; `2` and `2.0` are the same."""
    numbers, others = release_numbers(version), release_numbers(least)
    if numbers is None or others is None:
        return False
    length = max(len(numbers), len(others))
    return (*numbers, *(0,) * (length - len(numbers))) < (*others, *(0,) * (length - len(others)))
