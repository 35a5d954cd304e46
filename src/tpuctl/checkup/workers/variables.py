"""Rules about variables on the workers that steer libtpu, JAX, TensorFlow and torch_xla, and that are often left over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.checkup.log_variables import LEVEL_NAMES, LOG_DIR, misread
from tpuctl.checkup.workers.saying import Advice, Saying, each, named, unread
from tpuctl.preflight.fact import Known, Unknown
from tpuctl.preflight.findings import Found, Level, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.checkup.workers.facts import Examination, Variables, WorkersFacts

_PROFILES = "`~/.profile`, `~/.bash_profile` and `/etc/profile`, and what they read"
_FILES = "~/.profile ~/.bash_profile ~/.bashrc ~/.zshrc /etc/environment /etc/profile.d/*"
# Of these each program needs its own only where several share a worker [TPU documentation; JAX source].
_PARTS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
_LOG_NAMES = (LOG_DIR, *LEVEL_NAMES, "TPU_MAX_LOG_SIZE_MB", "TF_CPP_MIN_LOG_LEVEL")
_BACKEND_NAMES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "XRT_TPU_CONFIG", "LIBTPU_INIT_ARGS")
_COMPARED = (*_LOG_NAMES, *_PARTS, *_BACKEND_NAMES, "TPU_LIBRARY_PATH")


@each("TPU980", "variables of logs")
def log_variables(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check `TPU_LOG_DIR` and the log levels: a warning for what libtpu does not understand.

    Its word for no log is `disabled`; translated guides have it translated too, and then it is a path. Levels are 0 to 3. A
    note where `TF_CPP_MIN_LOG_LEVEL` hides warnings or errors of TensorFlow and of libtpu's clients [documentation].
    """
    if isinstance(told.variables, Unknown):
        yield unread("its variables", told.variables)
    if not isinstance(told.variables, Known):
        return
    seen, said = told.variables.value, []
    for name in (LOG_DIR, *LEVEL_NAMES):
        said += [_warning(seen, name, value, why) for value in seen.values(name) if (why := misread(name, value))]
    for value in seen.values("TF_CPP_MIN_LOG_LEVEL"):
        if value in {"2", "3"}:
            why = "what goes wrong is not printed: " + ("warnings" if value == "2" else "warnings and errors")
            said.append(_warning(seen, "TF_CPP_MIN_LOG_LEVEL", value, why, level=Level.NOTE))
    if seen.login_unread is not None:
        unknown = unread("what login shells set", Unknown(seen.login_unread))
        said.append(replace(unknown, advice=(Advice(f"look into {_PROFILES}: a login at a terminal meets the same"),)))
    yield from said or [Saying(level=Level.OK, text="no variable is in the way of logs")]


@each("TPU981", "variables of backends and chips")
def backend_variables(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Look for variables that keep programs from the TPU or from some of its chips: a warning for each.

    `JAX_PLATFORMS` without `tpu`, `PJRT_DEVICE` of another device, bounds of chips and processes that are left over. Notes for
    `XRT_TPU_CONFIG`, which torch_xla has not read since PJRT replaced XRT (which version ended it: unverified), for
    `LIBTPU_INIT_ARGS`, whose flags each version of libtpu may drop (unverified), and for a libtpu chosen by `TPU_LIBRARY_PATH`.
    """
    if not isinstance(told.variables, Known):  # the rule before says why
        return
    seen = told.variables.value
    said = [*_backends(seen), *_parts(seen), *_remarks(seen)]
    yield from said or [Saying(level=Level.OK, text="no variable keeps programs from the TPU")]


def _backends(seen: Variables) -> Iterator[Saying]:
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        for value in seen.values(name):
            if "tpu" not in value.lower().split(","):
                yield _warning(seen, name, value, "JAX does not look for a TPU then, and computes elsewhere")
    for value in seen.values("PJRT_DEVICE"):
        if value.upper() != "TPU":
            yield _warning(seen, "PJRT_DEVICE", value, "torch_xla computes there and not on the TPU")


def _parts(seen: Variables) -> Iterator[Saying]:
    for name in _PARTS:
        for value in seen.values(name):
            why = "every program sees that part of the chips alone, or waits for processes that nobody starts"
            yield _warning(seen, name, value, why)


def _remarks(seen: Variables) -> Iterator[Saying]:
    whys = {
        "XRT_TPU_CONFIG": "a torch_xla with PJRT does not read it: `PJRT_DEVICE=TPU` is what it needs",
        "LIBTPU_INIT_ARGS": "each version of libtpu has its own flags, and one that it lacks may end the program",
        "TPU_LIBRARY_PATH": "that libtpu is loaded, whichever is installed beside the framework",
    }
    for name, why in whys.items():
        for value in seen.values(name):
            yield _warning(seen, name, value, why, level=Level.NOTE)


def _warning(seen: Variables, name: str, value: str, why: str, *, level: Level = Level.WARNING) -> Saying:
    find = Advice.run("find where it is set, and take it out there", f"grep -n {name} {_FILES} 2>/dev/null")
    return Saying(
        level=level,
        text=f"`{name}={value}` is set in {_where(seen, name, value)}",
        why=why,
        advice=() if level is Level.NOTE else (find,),
        facts={"name": name, "value": value},
    )


def _where(seen: Variables, name: str, value: str) -> str:
    places: Mapping[str, bool] = {
        "a running job": any(job.get(name) == value for job in seen.jobs),
        "login shells": seen.login.get(name) == value,
        "ssh sessions": seen.session.get(name) == value,
    }
    return " and ".join(place for place, has in places.items() if has)


@rule("TPU982", "variables the same on all workers")
def same_variables(facts: WorkersFacts) -> Iterator[Found]:
    """Compare these variables between the workers: a warning for each that differs, as a slice needs the same on all."""
    variables = {number: one.variables.value for number, one in facts.told if isinstance(one.variables, Known)}
    if len(variables) < 2:
        return
    differs = False
    for name in _COMPARED:
        groups: dict[str | None, list[int]] = {}
        for number, seen in variables.items():
            values = seen.values(name)
            groups.setdefault(values[0] if values else None, []).append(number)
        if len(groups) > 1:
            differs = True
            yield _differing(name, groups)
    if not differs:
        yield Found(level=Level.OK, subject=named(variables), text="variables of TPU programs are the same on all")


def _differing(name: str, groups: Mapping[str | None, list[int]]) -> Found:
    in_order = sorted(groups.items(), key=lambda group: -len(group[1]))
    parts = [f"{'not set' if value is None else f'`{value}`'} on {named(numbers)}" for value, numbers in in_order]
    fewest = in_order[-1][1]
    return Found(
        level=Level.WARNING,
        subject=named(fewest),
        text=f"`{name}` is {', '.join(parts)}",
        why="a program of a slice must find the same on all its workers",
        facts={"name": name, "values": [{"value": value, "workers": numbers} for value, numbers in in_order]},
    )


RULES = (log_variables, backend_variables, same_variables)
