"""Rules about frameworks on the workers: the same on all workers, compatible with each other and with the runtime version.

Versions of packages are compared by the part of PEP 440 that frameworks need; what cannot be compared is None.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.check.facts import Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult, check_rule
from tpuctl.doctor.worker_rules import (
    WorkerFinding,
    WorkerRemedy,
    unread_finding,
    worker_ranges,
    worker_rule,
    workers_text,
)
from tpuctl.names import last_segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.doctor.doctor_facts import AllWorkersFacts, PythonEnvironment, WorkerReport

_IMAGE = re.compile(r"tpu-vm-tf-(\d+)\.(\d+)\.(\d+)(?:-.*)?")
_TENSORFLOWS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu")
_LIBRARIES = ("libtpu", "libtpu-nightly")


@worker_rule("TPU983", "frameworks on the workers")
def check_frameworks(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Show which versions of JAX, jaxlib, libtpu, TensorFlow, PyTorch, torch_xla, Flax and Keras are installed, and where.

    Versions come from package metadata, without importing a framework, which would take the TPU. Covered are the system's
    Python with the user's own packages, conda, environments named by running jobs or shells, and those in the home.
    """
    match report.environments:
        case Known(()):
            yield WorkerFinding(
                level=Level.NOTE,
                text="no framework is installed in the system's Python, in conda or in an environment in the home",
                advice=(WorkerRemedy.run("install a framework, such as JAX", 'python3 -m pip install -U "jax[tpu]"'),),
            )
        case Known(environments):
            for one in environments:
                versions = ", ".join(f"{name} {package.version}" for name, package in sorted(one.packages.items()))
                details = {"environment": one.path, "python": one.python} | {
                    "packages": {name: package.version for name, package in one.packages.items()}
                }
                yield WorkerFinding(
                    level=Level.OK, text=f"{one.name} (Python {one.python}) has {versions}", facts=details
                )
        case Unknown() as fact:
            yield unread_finding("the installed frameworks", fact)


@check_rule("TPU984", "same frameworks on all workers")
def check_same_versions(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Compare the frameworks between the workers: an error for each whose versions differ, with the workers that differ.

    A warning for an environment that only some workers have.
    """
    by_worker = {
        number: {one.path: one for one in report.environments.value}
        for number, report in facts.reports
        if isinstance(report.environments, Known)
    }
    if len(by_worker) < 2:
        return
    paths = dict.fromkeys(path for environments in by_worker.values() for path in environments)
    found = [one for path in paths for one in _compare_environments(path, by_worker, facts.node.name.node_id)]
    yield from found
    if not found and any(by_worker.values()):
        yield RuleResult(level=Level.OK, subject=workers_text(by_worker), text="the frameworks are the same on all")


def _compare_environments(
    path: str, by_worker: Mapping[int, Mapping[str, PythonEnvironment]], node_id: str
) -> Iterator[RuleResult]:
    have = {number: environments[path] for number, environments in by_worker.items() if path in environments}
    name = next(iter(have.values())).name
    if lacking := sorted(set(by_worker) - set(have)):
        yield RuleResult(
            level=Level.WARNING,
            subject=workers_text(lacking),
            text=f"{name} has no frameworks here, but does on {workers_text(have)}",
            why="a program of a slice needs the same packages on all workers",
            remedies=(Remedy("create the same environment there, or remove it if it is not needed"),),
            facts={"environment": path, "workers": lacking},
        )
    packages = sorted({package for one in have.values() for package in one.packages})
    yield from filter(None, (_compare_versions(package, have, node_id) for package in packages))
    pythons: dict[str, list[int]] = {}
    for number, environment in have.items():
        pythons.setdefault(environment.python, []).append(number)
    if len(pythons) > 1:
        in_order = sorted(pythons.items(), key=lambda group: -len(group[1]))
        parts = [f"{version} on {workers_text(numbers)}" for version, numbers in in_order]
        yield RuleResult(
            level=Level.WARNING,
            subject=workers_text(in_order[-1][1]),
            text=f"Python in {name} is {', '.join(parts)}",
            why="packages are installed for one version of Python each",
            facts={"pythons": [{"python": version, "workers": numbers} for version, numbers in in_order]},
        )


def _compare_versions(package: str, have: Mapping[int, PythonEnvironment], node_id: str) -> RuleResult | None:
    where = next(iter(have.values()))
    groups: dict[str | None, list[int]] = {}
    for number, one in have.items():
        installed = one.packages.get(package)
        groups.setdefault(installed.version if installed else None, []).append(number)
    if len(groups) == 1:
        return None
    in_order = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    usual, fewest = next(version for version, _ in in_order if version), in_order[-1][1]
    parts = [f"{version or 'not installed'} on {workers_text(numbers)}" for version, numbers in in_order]
    away = worker_ranges(number for version, numbers in in_order if version != usual for number in numbers)
    return RuleResult(
        level=Level.ERROR,
        subject=workers_text(fewest),
        text=f"`{package}` in {where.name} is {', '.join(parts)}",
        why="the workers of a slice run one program: with different versions they wait for each other, or crash",
        remedies=(
            Remedy(
                f"install one version on all, here {usual}; it must fit the other packages and the image",
                shlex.join(
                    [
                        "tpuctl",
                        "run",
                        node_id,
                        "--worker",
                        away,
                        "--",
                        f'{_pip_command(where)} install "{package}=={usual}"',
                    ]
                ),
            ),
        ),
        facts={
            "package": package,
            "versions": [{"version": version, "workers": numbers} for version, numbers in in_order],
        },
    )


@worker_rule("TPU985", "compatible frameworks")
def check_compatible_versions(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the versions in each environment against the requirements in the metadata of the packages.

    An error for a jaxlib that JAX refuses (newer than JAX, or older than it requires), and for a torch_xla of another release
    than PyTorch, which then lacks symbols [documentation of torch_xla; observed]. A warning for another libtpu than the one
    that JAX or torch_xla requires for TPUs, for a JAX without libtpu, and for two libtpu packages in one environment.
    """
    for one in report.environments.value if isinstance(report.environments, Known) else ():
        found = [*_check_requirements(one), *_check_torch_and_libtpu(one)]
        yield from found or [WorkerFinding(level=Level.OK, text=f"the frameworks in {one.name} are compatible")]


def _check_requirements(one: PythonEnvironment) -> Iterator[WorkerFinding]:
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
            is_firm = wanted.extra is None
            reinstalled = f"{name}{'' if is_firm else '[tpu]'}=={package.version.partition('+')[0]}"
            yield WorkerFinding(
                level=Level.ERROR if is_firm else Level.WARNING,
                text=f"{wanted.name} {other.version} in {one.name} is not what {name} {package.version} requires"
                f"{'' if is_firm else ' on TPUs'}: `{wanted.clauses}`",
                why="an import fails, or the program crashes at the first computation",
                advice=(_install_remedy(one, reinstalled),),
                facts={"package": wanted.name, "version": other.version, "by": name, "clauses": wanted.clauses},
            )


def _check_torch_and_libtpu(one: PythonEnvironment) -> Iterator[WorkerFinding]:
    torch, torch_xla = one.packages.get("torch"), one.packages.get("torch-xla")
    left, right = (release_numbers(package.version) if package else None for package in (torch, torch_xla))
    if torch and torch_xla and left and right and left[:2] != right[:2]:
        wanted = f"{left[0]}.{left[1]}"
        yield WorkerFinding(
            level=Level.ERROR,
            text=f"torch {torch.version} and torch-xla {torch_xla.version} in {one.name} are of different releases",
            why="torch_xla is built for one release of PyTorch: with another its import fails (`undefined symbol`)",
            advice=(_install_remedy(one, f"torch~={wanted}.0", f"torch_xla[tpu]~={wanted}.0"),),
            facts={"torch": torch.version, "torch-xla": torch_xla.version},
        )
    present = [name for name in _LIBRARIES if name in one.packages]
    if len(present) > 1:
        versions = " and ".join(f"{name} {one.packages[name].version}" for name in present)
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"{versions} are both in {one.name}",
            why="both contain the same file, `libtpu.so`: the one that was installed last is loaded",
            advice=(
                WorkerRemedy.run(
                    "remove both, and let the framework install its own",
                    f"{_pip_command(one)} uninstall -y libtpu libtpu-nightly",
                ),
            ),
            facts={name: one.packages[name].version for name in present},
        )
    elif not present and "jax" in one.packages:
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"{one.name} has JAX but no libtpu",
            why="JAX finds no TPU then and uses the CPU, unless `TPU_LIBRARY_PATH` names a libtpu",
            advice=(_install_remedy(one, f"jax[tpu]=={one.packages['jax'].version}"),),
        )


def _install_remedy(one: PythonEnvironment, *packages: str) -> WorkerRemedy:
    quoted = " ".join(f'"{package}"' for package in packages)
    return WorkerRemedy.run(
        "install matching versions, the same on all workers", f"{_pip_command(one)} install -U {quoted}"
    )


def _pip_command(one: PythonEnvironment) -> str:
    """Return the pip command of an environment, run by its own Python: a plain `pip` is the first one on PATH."""
    if one.kind == "system":
        return "python3 -m pip"
    # The shell expands `~` only outside of quotes.
    path = "~/" + shlex.quote(one.path[2:]) if one.path.startswith("~/") else shlex.quote(one.path)
    return f"{path}/bin/python -m pip"


@worker_rule("TPU986", "TensorFlow and runtime version")
def check_tensorflow_matches_image(facts: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check TensorFlow on a TensorFlow image: the client and the software of the TPU must be of the same release.

    A warning if they differ; a note if no TensorFlow is found, and for a libtpu installed in addition to the image's own: it is
    unverified which of the two TensorFlow loads.
    """
    image = _IMAGE.fullmatch(last_segment(facts.node.runtime_version))
    if image is None or not isinstance(report.environments, Known):
        return
    wanted, name, has_any = (int(image[1]), int(image[2])), image[0], False
    for one in report.environments.value:
        for package in (name for name in _TENSORFLOWS if name in one.packages):
            has_any, version = True, one.packages[package].version
            numbers = release_numbers(version)
            if numbers is None:
                continue
            if numbers[:2] != wanted:
                image_option = "--version=" + re.sub(r"\d+\.\d+\.\d+", version.partition("+")[0], name, count=1)
                yield WorkerFinding(
                    level=Level.WARNING,
                    text=f"{package} {version} in {one.name} is of another release than the image, `{name}`",
                    why="client and TPU need the same release of TensorFlow: otherwise programs fail or hang",
                    advice=(
                        _install_remedy(one, f"{package}=={wanted[0]}.{wanted[1]}.*"),
                        WorkerRemedy(
                            "or recreate the node with its image, if the zone offers it",
                            "up",
                            (image_option, "--replace"),
                        ),
                    ),
                    facts={"package": package, "version": version, "runtimeVersion": name},
                )
            else:
                yield WorkerFinding(level=Level.OK, text=f"{package} {version} in {one.name} fits `{name}`")
            for library in (library for library in _LIBRARIES if library in one.packages):
                text = f"{library} {one.packages[library].version} in {one.name} is installed beside the libtpu of `{name}`"
                yield WorkerFinding(
                    level=Level.NOTE, text=text, why="it is unverified which of the two TensorFlow loads"
                )
    if not has_any:
        text = f"no TensorFlow is found, although the image is `{name}`"
        yield WorkerFinding(level=Level.NOTE, text=text, why="a TensorFlow image contains the TensorFlow that fits it")


FRAMEWORK_RULES = (check_frameworks, check_same_versions, check_compatible_versions, check_tensorflow_matches_image)


_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){0,5})(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<number>\d+)?)?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d+)?)?(?:[-_.]?dev[-_.]?(?P<dev>\d+)?)?(?P<local>\+[a-z0-9._-]+)?"
)
_CLAUSE = re.compile(r"(?P<operator>~=|==|!=|<=|>=|<|>) *(?P<version>[A-Za-z0-9.+!_-]+?)(?P<any>\.\*)?")
_REQUIREMENT = re.compile(r"(?P<name>[a-z0-9-]+) *\(?(?P<clauses>(?:[<>=!~][^;()@]*)?)\)? *(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra *== *['\"]([A-Za-z0-9_-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Requirement:
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
    verdicts = [_satisfies_clause(version, clause.strip()) for clause in clauses.split(",") if clause.strip()]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _satisfies_clause(version: str, clause: str) -> bool | None:
    match, have = _CLAUSE.fullmatch(clause), _version_key(version)
    if match is None or have is None:
        return None
    operator, wanted = match["operator"], match["version"]
    if match["any"]:
        numbers, prefix = release_numbers(version), release_numbers(wanted)
        if numbers is None or prefix is None or operator not in {"==", "!="}:
            return None
        return (_padded(numbers)[: len(prefix)] == prefix) is (operator == "==")
    want = _version_key(wanted)
    if want is None:
        return None
    match operator:
        case "==":
            return have == want
        case "!=":
            return have != want
        case "<=":
            return have <= want
        case ">=":
            return have >= want
        case "<":
            return have < want
        case ">":
            return have > want
        case _:
            prefix = release_numbers(wanted) or ()
            return have >= want and _padded(release_numbers(version) or ())[: len(prefix) - 1] == prefix[:-1]


def _version_key(version: str) -> tuple[object, ...] | None:
    """Return a sort key for a version: a development version comes before its release, a local part is ignored."""
    match = _VERSION.fullmatch(version.strip().lower())
    if match is None:
        return None
    numbers = _padded(tuple(map(int, match["release"].split("."))))
    text = match.group().partition("+")[0]
    has_dev, has_post = "dev" in text, "post" in text
    if match["pre"]:
        stage = (-1, "abrc".index(match["pre"][0]), int(match["number"] or 0))
    else:
        stage = (-2 if has_dev and not has_post else 1 if has_post else 0, 0, int(match["post"] or 0))
    return (*numbers, *stage, 0 if has_dev else 1, int(match["dev"] or 0))


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *(0,) * (6 - len(numbers)))
