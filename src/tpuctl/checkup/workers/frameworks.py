"""Rules about the frameworks on the workers: the same on all, fitting one another, and fitting the runtime version."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tpuctl.checkup.workers.saying import Advice, Saying, each, named, ranges, unread
from tpuctl.checkup.workers.specifiers import meets, parse_requirement, release
from tpuctl.names import short
from tpuctl.preflight.fact import Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.checkup.workers.facts import Examination, PythonEnvironment, WorkersFacts
    from tpuctl.checkup.workers.specifiers import Requirement

_IMAGE = re.compile(r"tpu-vm-tf-(\d+)\.(\d+)\.(\d+)(?:-.*)?")
_TENSORFLOWS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu")
_LIBRARIES = ("libtpu", "libtpu-nightly")


@each("TPU983", "frameworks on the workers")
def frameworks(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Tell which versions of JAX, jaxlib, libtpu, TensorFlow, PyTorch, torch_xla, Flax and Keras are installed, and where.

    They are read from package metadata; nothing is imported, which would take the TPU. Looked at are the system's Python with
    the user's own packages, conda, environments that running jobs or shells name, and those in the home.
    """
    match told.environments:
        case Known(()):
            yield Saying(
                level=Level.NOTE,
                text="no framework is installed in the system's Python, in conda or in an environment in the home",
                advice=(
                    Advice.run("install one where it is missing, such as JAX", 'python3 -m pip install -U "jax[tpu]"'),
                ),
            )
        case Known(environments):
            for one in environments:
                versions = ", ".join(f"{name} {package.version}" for name, package in sorted(one.packages.items()))
                seen = {"environment": one.path, "python": one.python} | {
                    "packages": {name: package.version for name, package in one.packages.items()}
                }
                yield Saying(level=Level.OK, text=f"{one.name} (Python {one.python}) has {versions}", facts=seen)
        case Unknown() as fact:
            yield unread("the installed frameworks", fact)


@rule("TPU984", "frameworks the same on all workers")
def same_versions(facts: WorkersFacts) -> Iterator[Found]:
    """Compare the frameworks between the workers: an error for each whose versions differ, naming who differs.

    A warning for an environment that only some workers have.
    """
    by_worker = {
        number: {one.path: one for one in told.environments.value}
        for number, told in facts.told
        if isinstance(told.environments, Known)
    }
    if len(by_worker) < 2:
        return
    found = [one for path in _paths(by_worker) for one in _compared(path, by_worker, facts.node.name.node_id)]
    yield from found
    if not found and any(by_worker.values()):
        yield Found(level=Level.OK, subject=named(by_worker), text="the frameworks are the same on all")


def _paths(by_worker: Mapping[int, Mapping[str, PythonEnvironment]]) -> list[str]:
    return list(dict.fromkeys(path for here in by_worker.values() for path in here))


def _compared(path: str, by_worker: Mapping[int, Mapping[str, PythonEnvironment]], node_id: str) -> Iterator[Found]:
    have = {number: here[path] for number, here in by_worker.items() if path in here}
    one = next(iter(have.values()))
    name = one.name
    if lacking := sorted(set(by_worker) - set(have)):
        yield Found(
            level=Level.WARNING,
            subject=named(lacking),
            text=f"there are no frameworks in {name}, as there are on {named(have)}",
            why="a program of a slice runs on all workers, and needs the same packages on each",
            remedies=(Remedy("make the same environment there, or remove it where it is not needed"),),
            facts={"environment": path, "workers": lacking},
        )
    packages = sorted({package for one in have.values() for package in one.packages})
    yield from filter(None, (_differing(package, one, have, node_id) for package in packages))
    yield from _pythons(name, have)


def _differing(
    package: str, where: PythonEnvironment, have: Mapping[int, PythonEnvironment], node_id: str
) -> Found | None:
    groups: dict[str | None, list[int]] = {}
    for number, one in have.items():
        installed = one.packages.get(package)
        groups.setdefault(installed.version if installed else None, []).append(number)
    if len(groups) == 1:
        return None
    in_order = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    usual, fewest = next(version for version, _ in in_order if version), in_order[-1][1]
    parts = [f"{version or 'not there'} on {named(numbers)}" for version, numbers in in_order]
    away = ranges(number for version, numbers in in_order if version != usual for number in numbers)
    return Found(
        level=Level.ERROR,
        subject=named(fewest),
        text=f"`{package}` in {where.name} is {', '.join(parts)}",
        why="workers of a slice run one program together: with different versions they wait for each other, or crash",
        remedies=(
            Remedy(
                f"install one version on all; {usual} stands for that, and must fit the other packages there and the image",
                shlex.join(
                    ["tpuctl", "run", node_id, "--worker", away, "--", f'{_pip(where)} install "{package}=={usual}"']
                ),
            ),
        ),
        facts={
            "package": package,
            "versions": [{"version": version, "workers": numbers} for version, numbers in in_order],
        },
    )


def _pythons(where: str, have: Mapping[int, PythonEnvironment]) -> Iterator[Found]:
    groups: dict[str, list[int]] = {}
    for number, one in have.items():
        groups.setdefault(one.python, []).append(number)
    if len(groups) > 1:
        in_order = sorted(groups.items(), key=lambda group: -len(group[1]))
        parts = [f"{version} on {named(numbers)}" for version, numbers in in_order]
        yield Found(
            level=Level.WARNING,
            subject=named(in_order[-1][1]),
            text=f"Python in {where} is {', '.join(parts)}",
            why="packages are installed for one version of Python each",
            facts={"pythons": [{"python": version, "workers": numbers} for version, numbers in in_order]},
        )


@each("TPU985", "frameworks that fit one another")
def pairs(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check the versions in each environment against what the packages themselves ask for in their metadata.

    An error for a jaxlib that JAX refuses (newer than JAX, or older than it asks for), and for a torch_xla of another release
    than PyTorch, whose symbols it lacks then [documentation of torch_xla; observed]. A warning for a libtpu that is not the one
    which JAX or torch_xla names for TPUs, for a JAX without libtpu, and for two libtpus in one place.
    """
    for one in told.environments.value if isinstance(told.environments, Known) else ():
        found = [*_requirements(one), *_torch(one), *_libraries(one)]
        yield from found or [Saying(level=Level.OK, text=f"the frameworks in {one.name} fit one another")]


def _requirements(one: PythonEnvironment) -> Iterator[Saying]:
    for name, package in sorted(one.packages.items()):
        asked = [found for text in package.requires if (found := parse_requirement(text))]
        # What is asked for in any case is often asked for again for TPUs.
        told = set()
        for wish in sorted(asked, key=lambda found: found.extra is not None):
            other = one.packages.get(wish.name)
            if other is None or wish.extra not in {None, "tpu"} or wish.name in told:
                continue
            if meets(other.version, wish.clauses) is False:
                told.add(wish.name)
                yield _unmet(one, name, wish)


def _unmet(one: PythonEnvironment, name: str, wish: Requirement) -> Saying:
    is_firm, version, has = wish.extra is None, one.packages[name].version, one.packages[wish.name].version
    wanted = f"{name}{'' if is_firm else '[tpu]'}=={version.partition('+')[0]}"
    return Saying(
        level=Level.ERROR if is_firm else Level.WARNING,
        text=f"{wish.name} {has} in {one.name} is not what {name} {version} asks for"
        f"{'' if is_firm else ' on TPUs'}: `{wish.clauses}`",
        why="an import fails, or the program crashes at the first computation",
        advice=(_install(one, wanted),),
        facts={"package": wish.name, "version": has, "by": name, "clauses": wish.clauses},
    )


def _torch(one: PythonEnvironment) -> Iterator[Saying]:
    torch, torch_xla = one.packages.get("torch"), one.packages.get("torch-xla")
    if torch is None or torch_xla is None:
        return
    left, right = release(torch.version), release(torch_xla.version)
    if left and right and left[:2] != right[:2]:
        wanted = f"{left[0]}.{left[1]}"
        yield Saying(
            level=Level.ERROR,
            text=f"torch {torch.version} and torch-xla {torch_xla.version} in {one.name} are of different releases",
            why="torch_xla is built for one release of PyTorch: with another its import fails (`undefined symbol`)",
            advice=(_install(one, f"torch~={wanted}.0", f"torch_xla[tpu]~={wanted}.0"),),
            facts={"torch": torch.version, "torch-xla": torch_xla.version},
        )


def _libraries(one: PythonEnvironment) -> Iterator[Saying]:
    present = [name for name in _LIBRARIES if name in one.packages]
    if len(present) > 1:
        versions = " and ".join(f"{name} {one.packages[name].version}" for name in present)
        yield Saying(
            level=Level.WARNING,
            text=f"{versions} are both in {one.name}",
            why="both bring the same file, `libtpu.so`: the one that was installed last is loaded",
            advice=(
                Advice.run(
                    "remove both, and let the framework bring its own",
                    f"{_pip(one)} uninstall -y libtpu libtpu-nightly",
                ),
            ),
            facts={name: one.packages[name].version for name in present},
        )
    elif not present and "jax" in one.packages:
        yield Saying(
            level=Level.WARNING,
            text=f"there is a JAX in {one.name}, and no libtpu",
            why="JAX sees no TPU then, and computes on the CPU, unless `TPU_LIBRARY_PATH` names a libtpu",
            advice=(_install(one, f"jax[tpu]=={one.packages['jax'].version}"),),
        )


def _install(one: PythonEnvironment, *packages: str) -> Advice:
    quoted = " ".join(f'"{package}"' for package in packages)
    return Advice.run("install what belongs together, on all workers alike", f"{_pip(one)} install -U {quoted}")


def _pip(one: PythonEnvironment) -> str:
    """Return how pip is run in an environment: by its own Python, since a plain `pip` is whichever comes first on PATH."""
    return ("python3" if one.kind == "system" else f"{_in_shell(one.path)}/bin/python") + " -m pip"


def _in_shell(path: str) -> str:
    """Return a path for a shell line, in which `~` still stands for the home."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


@each("TPU986", "TensorFlow that fits the runtime version")
def tensorflow_fits(facts: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check TensorFlow against an image of TensorFlow: the client and the TPU's software must be of the same release.

    A warning where it is of another one; a note where none is found, and for a libtpu that was installed beside the image's
    own: which of the two TensorFlow loads is unverified.
    """
    image = _IMAGE.fullmatch(short(facts.node.runtime_version))
    if image is None or not isinstance(told.environments, Known):
        return
    wanted, name, has_any = (int(image[1]), int(image[2])), image[0], False
    for one in told.environments.value:
        for package in (name for name in _TENSORFLOWS if name in one.packages):
            has_any, version = True, one.packages[package].version
            numbers = release(version)
            if numbers is None:
                continue
            if numbers[:2] != wanted:
                yield _misfit(package, version, one, name, wanted)
            else:
                yield Saying(level=Level.OK, text=f"{package} {version} in {one.name} fits `{name}`")
            for library in (library for library in _LIBRARIES if library in one.packages):
                text = f"{library} {one.packages[library].version} in {one.name} lies beside the libtpu of `{name}`"
                yield Saying(level=Level.NOTE, text=text, why="which of them TensorFlow loads is not known to tpuctl")
    if not has_any:
        text = f"no TensorFlow is found, though the image is `{name}`"
        yield Saying(level=Level.NOTE, text=text, why="an image of TensorFlow brings the one that fits it")


def _misfit(package: str, version: str, one: PythonEnvironment, image: str, wanted: tuple[int, int]) -> Saying:
    again = "--version=" + re.sub(r"\d+\.\d+\.\d+", version.partition("+")[0], image, count=1)
    return Saying(
        level=Level.WARNING,
        text=f"{package} {version} in {one.name} is not of the release of the image, `{image}`",
        why="client and TPU must have the same release of TensorFlow: others fail with strange errors, or hang",
        advice=(
            _install(one, f"{package}=={wanted[0]}.{wanted[1]}.*"),
            Advice("or make the node again with its image, where the zone has that", "up", (again, "--replace")),
        ),
        facts={"package": package, "version": version, "runtimeVersion": image},
    )


RULES = (frameworks, same_versions, pairs, tensorflow_fits)
