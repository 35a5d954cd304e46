"""Rules about frameworks on the workers: the same on all workers, compatible with each other and with the runtime version.

Versions of packages are compared by the part of PEP 440 that frameworks need; what cannot be compared is None.
"""

from __future__ import annotations

import re
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.check.findings import Level, Remedy
from tpuctl.command_text import command_word
from tpuctl.doctor.verdicts import (
    NodeRemedy,
    Verdict,
    error,
    group_workers,
    known_on_workers,
    node_rule,
    note,
    ok,
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
    from collections.abc import Callable, Iterator, Mapping

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
def check_frameworks(environments: tuple[PythonEnvironment, ...], *_: object) -> Iterator[Verdict]:
    """Show which versions of JAX, jaxlib, libtpu, TensorFlow, PyTorch, torch_xla, Flax and Keras are installed, and where.

    Versions come from package metadata, without importing a framework, which would take the TPU. Covered are the system's
    Python with the user's own packages, conda, environments named by running jobs or shells, and those in the home.
    """
    if not environments:
        install = run_there("install a framework, such as JAX", 'python3 -m pip install -U "jax[tpu]"')
        yield note(
            "no framework is installed in the system's Python, in conda or in an environment in the home", install
        )
    for one in environments:
        versions = {name: package.version for name, package in one.packages.items()}
        text = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        facts = {"environment": one.path, "python": one.python, "packages": versions}
        yield ok(f"{one.name} (Python {one.python}) has {text}", facts=facts)


@node_rule("TPU984", "same frameworks on all workers")
def check_same_versions(facts: AllWorkersFacts) -> Iterator[Verdict]:
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
    found = [one for have in by_path.values() for one in _compare_environment(have, set(known))]
    yield from found
    if by_path and not found:
        yield ok("the frameworks are the same on all", subject=workers_text(known))


def _compare_environment(have: Mapping[int, PythonEnvironment], workers: set[int]) -> Iterator[Verdict]:
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
        versions = {number: one.packages.get(package) for number, one in have.items()}
        groups = group_workers({number: found.version if found else None for number, found in versions.items()})
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


@worker_rule("TPU985", "compatible frameworks", lambda report: report.environments)  # TPU983 says why they are unknown
def check_compatible_versions(environments: tuple[PythonEnvironment, ...], *_: object) -> Iterator[Verdict]:
    """Check the versions in each environment against the requirements in the metadata of the packages.

    An error for a jaxlib that JAX refuses (newer than JAX, or older than it requires), and for a torch_xla of another release
    than PyTorch, which then lacks symbols [documentation of torch_xla; observed]. A warning for another libtpu than the one
    that JAX or torch_xla requires for TPUs, for a JAX without libtpu, and for two libtpu packages in one environment.
    """
    for one in environments:
        found = [*_check_requirements(one), *_check_torch(one), *_check_libtpu(one)]
        yield from found or [ok(f"the frameworks in {one.name} are compatible")]


def _check_requirements(one: PythonEnvironment) -> Iterator[Verdict]:
    for name, package in sorted(one.packages.items()):
        requirements = [found for text in package.requires if (found := parse_requirement(text))]
        # A general requirement is often repeated for TPUs.
        reported = set()
        for wanted in sorted(requirements, key=lambda found: found.extra is not None):
            other = one.packages.get(wanted.name)
            if other is None or wanted.extra not in {None, "tpu"} or wanted.name in reported:
                continue
            if satisfies(other.version, wanted.clauses) is not False:
                continue
            reported.add(wanted.name)
            level, extra, where = (Level.WARNING, "[tpu]", " on TPUs") if wanted.extra else (Level.ERROR, "", "")
            yield verdict(
                level,
                f"{wanted.name} {other.version} in {one.name} is not what {name} {package.version} requires{where}: "
                f"`{wanted.clauses}`",
                _install_remedy(one, f"{name}{extra}=={package.version.partition('+')[0]}"),
                why="an import fails, or the program crashes at the first computation",
                facts={"package": wanted.name, "version": other.version, "by": name, "clauses": wanted.clauses},
            )


def _check_torch(one: PythonEnvironment) -> Iterator[Verdict]:
    torch, torch_xla = one.packages.get("torch"), one.packages.get("torch-xla")
    if torch is None or torch_xla is None:
        return
    left, right = release_numbers(torch.version), release_numbers(torch_xla.version)
    if left and right and left[:2] != right[:2]:
        wanted = f"{left[0]}.{left[1]}"
        yield error(
            f"torch {torch.version} and torch-xla {torch_xla.version} in {one.name} are of different releases",
            _install_remedy(one, f"torch~={wanted}.0", f"torch_xla[tpu]~={wanted}.0"),
            why="torch_xla is built for one release of PyTorch: with another its import fails (`undefined symbol`)",
            facts={"torch": torch.version, "torch-xla": torch_xla.version},
        )


def _check_libtpu(one: PythonEnvironment) -> Iterator[Verdict]:
    versions = {name: one.packages[name].version for name in _LIBRARIES if name in one.packages}
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
            _install_remedy(one, f"jax[tpu]=={one.packages['jax'].version}"),
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
) -> Iterator[Verdict]:
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
        version = one.packages[package].version
        numbers = release_numbers(version)
        if numbers is None:
            continue
        if numbers[:2] == wanted:
            yield ok(f"{package} {version} in {one.name} fits `{name}`")
        else:
            image_option = "--version=" + re.sub(r"\d+\.\d+\.\d+", version.partition("+")[0], name, count=1)
            yield warning(
                f"{package} {version} in {one.name} is of another release than the image, `{name}`",
                _install_remedy(one, f"{package}=={wanted[0]}.{wanted[1]}.*"),
                on_node("or recreate the node with its image, if the zone offers it", "up", image_option, "--replace"),
                why="client and TPU need the same release of TensorFlow: otherwise programs fail or hang",
                facts={"package": package, "version": version, "runtimeVersion": name},
            )
        for library in (library for library in _LIBRARIES if library in one.packages):
            text = f"{library} {one.packages[library].version} in {one.name} is installed beside the libtpu of `{name}`"
            yield note(text, why="it is unverified which of the two TensorFlow loads")
    if not found:
        why = "a TensorFlow image contains the TensorFlow that fits it"
        yield note(f"no TensorFlow is found, although the image is `{name}`", why=why)


_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){0,5})(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<number>\d+)?)?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d+)?)?(?:[-_.]?dev[-_.]?(?P<dev>\d+)?)?(?P<local>\+[a-z0-9._-]+)?"
)
_CLAUSE = re.compile(r"(?P<operator>~=|==|!=|<=|>=|<|>) *(?P<version>[A-Za-z0-9.+!_-]+?)(?P<any>\.\*)?")
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": eq,
    "!=": ne,
    "<=": le,
    ">=": ge,
    "<": lt,
    ">": gt,
}
_REQUIREMENT = re.compile(r"(?P<name>[a-z0-9-]+) *\(?(?P<clauses>(?:[<>=!~][^;()@]*)?)\)? *(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra *== *['\"]([A-Za-z0-9_-]+)['\"]")


class Requirement(NamedTuple):
    """A requirement on another package: `clauses` like `<=0.4.35,>=0.4.34`; with an `extra` it holds only for that."""

    name: str
    clauses: str
    extra: str | None


def parse_requirement(text: str) -> Requirement | None:
    """Parse a `Requires-Dist` line. None for an unknown form, and if its marker is more than an extra."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    marker = (match["marker"] or "").strip()
    extra = _EXTRA.fullmatch(marker)
    if marker and extra is None:
        return None
    return Requirement(match["name"], match["clauses"].strip(), extra[1] if extra else None)


def release_numbers(version: str) -> tuple[int, ...] | None:
    """Return the release numbers of a version, like `(0, 4, 35)`. None if it is not a version."""
    match = _VERSION.fullmatch(version.strip().lower())
    return tuple(map(int, match["release"].split("."))) if match else None


def satisfies(version: str, clauses: str) -> bool | None:
    """Return whether a version satisfies all clauses. None if that cannot be decided."""
    answers = [_satisfies_clause(version, clause.strip()) for clause in clauses.split(",") if clause.strip()]
    if False in answers:
        return False
    return None if None in answers else True


def _satisfies_clause(version: str, clause: str) -> bool | None:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        return None
    have, want, prefix = _version_key(version), _version_key(match["version"]), release_numbers(match["version"])
    if have is None or want is None or prefix is None:
        return None
    if match["any"]:
        has_prefix = have[: len(prefix)] == prefix
        return {"==": has_prefix, "!=": not has_prefix}.get(match["operator"])
    if match["operator"] == "~=":
        return have >= want and have[: len(prefix) - 1] == prefix[:-1]
    return _COMPARISONS[match["operator"]](have, want)


def _version_key(version: str) -> tuple[int, ...] | None:
    """Return a sort key, which begins with six release numbers: development versions come first, local parts are ignored."""
    match, numbers = _VERSION.fullmatch(version.strip().lower()), release_numbers(version)
    if match is None or numbers is None:
        return None
    text = match.group().partition("+")[0]
    is_dev, is_post = "dev" in text, "post" in text
    if match["pre"]:
        stage = (-1, "abrc".index(match["pre"][0]), int(match["number"] or 0))
    else:
        stage = (-2 if is_dev and not is_post else 1 if is_post else 0, 0, int(match["post"] or 0))
    return (*numbers, *(0,) * (6 - len(numbers)), *stage, 0 if is_dev else 1, int(match["dev"] or 0))
