"""Rules about environment variables on the workers that affect libtpu, JAX, TensorFlow and torch_xla."""

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
# Only programs that share a worker need these [TPU documentation; JAX source].
_PARTS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
_LOG_NAMES = (LOG_DIR, *LEVEL_NAMES, "TPU_MAX_LOG_SIZE_MB", "TF_CPP_MIN_LOG_LEVEL")
_BACKEND_NAMES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "XRT_TPU_CONFIG", "LIBTPU_INIT_ARGS")
_COMPARED = (*_LOG_NAMES, *_PARTS, *_BACKEND_NAMES, "TPU_LIBRARY_PATH")


@each("TPU980", "log variables")
def log_variables(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check `TPU_LOG_DIR` and the log levels: a warning for a value that libtpu does not accept.

    Its word for no log is `disabled`; a translation of that word is taken for a path. Levels are 0 to 3. A note if
    `TF_CPP_MIN_LOG_LEVEL` hides warnings or errors of TensorFlow and of libtpu's clients [documentation].
    """
    if isinstance(report.variables, Unknown):
        yield unread("its variables", report.variables)
    if not isinstance(report.variables, Known):
        return
    variables, findings = report.variables.value, []
    for name in (LOG_DIR, *LEVEL_NAMES):
        findings += [
            _warning(variables, name, value, why) for value in variables.values(name) if (why := misread(name, value))
        ]
    for value in variables.values("TF_CPP_MIN_LOG_LEVEL"):
        if value in {"2", "3"}:
            why = f"it hides {'warnings' if value == '2' else 'warnings and errors'}"
            findings.append(_warning(variables, "TF_CPP_MIN_LOG_LEVEL", value, why, level=Level.NOTE))
    if variables.login_unread is not None:
        unknown = unread("the variables of login shells", Unknown(variables.login_unread))
        findings.append(replace(unknown, advice=(Advice(f"check {_PROFILES}: a login at a terminal runs them too"),)))
    yield from findings or [Saying(level=Level.OK, text="no variable prevents logs")]


@each("TPU981", "backend and chip variables")
def backend_variables(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check for variables that keep programs from using the TPU or some of its chips: a warning for each.

    `JAX_PLATFORMS` without `tpu`, `PJRT_DEVICE` with another device, leftover bounds of chips and processes. Notes for
    `XRT_TPU_CONFIG`, which torch_xla ignores since PJRT replaced XRT (the version is unverified), for `LIBTPU_INIT_ARGS`, whose
    flags depend on the version of libtpu (unverified), and for a libtpu chosen by `TPU_LIBRARY_PATH`.
    """
    if not isinstance(report.variables, Known):  # TPU980 says why
        return
    variables = report.variables.value
    reasons = {
        **dict.fromkeys(("JAX_PLATFORMS", "JAX_PLATFORM_NAME"), "JAX does not use the TPU then, but another device"),
        "PJRT_DEVICE": "torch_xla uses that device, not the TPU",
        **dict.fromkeys(_PARTS, "every program uses only these chips, or waits for processes that do not exist"),
    }
    findings = [
        _warning(variables, name, value, why)
        for name, why in reasons.items()
        for value in variables.values(name)
        if name in _PARTS or "tpu" not in value.lower().split(",")
    ]
    notes = {
        "XRT_TPU_CONFIG": "a torch_xla with PJRT ignores it, and needs `PJRT_DEVICE=TPU`",
        "LIBTPU_INIT_ARGS": "each version of libtpu has its own flags, and an unknown one may terminate the program",
        "TPU_LIBRARY_PATH": "programs load that libtpu instead of the one installed with the framework",
    }
    findings += [
        _warning(variables, name, value, why, level=Level.NOTE)
        for name, why in notes.items()
        for value in variables.values(name)
    ]
    yield from findings or [Saying(level=Level.OK, text="no variable keeps programs from using the TPU")]


def _warning(variables: Variables, name: str, value: str, why: str, *, level: Level = Level.WARNING) -> Saying:
    find = Advice.run("find where it is set, and remove it there", f"grep -n {name} {_FILES} 2>/dev/null")
    places: Mapping[str, bool] = {
        "a running job": any(job.get(name) == value for job in variables.jobs),
        "login shells": variables.login.get(name) == value,
        "ssh sessions": variables.session.get(name) == value,
    }
    return Saying(
        level=level,
        text=f"`{name}={value}` is set in {' and '.join(place for place, has in places.items() if has)}",
        why=why,
        advice=() if level is Level.NOTE else (find,),
        facts={"name": name, "value": value},
    )


@rule("TPU982", "same variables on all workers")
def same_variables(facts: WorkersFacts) -> Iterator[Found]:
    """Compare these variables between the workers: a warning for each that differs, since a slice needs the same on all."""
    variables = {number: one.variables.value for number, one in facts.reports if isinstance(one.variables, Known)}
    if len(variables) < 2:
        return
    differs = False
    for name in _COMPARED:
        groups: dict[str | None, list[int]] = {}
        for number, found in variables.items():
            values = found.values(name)
            groups.setdefault(values[0] if values else None, []).append(number)
        if len(groups) == 1:
            continue
        differs = True
        in_order = sorted(groups.items(), key=lambda group: -len(group[1]))
        parts = [f"{'not set' if value is None else f'`{value}`'} on {named(numbers)}" for value, numbers in in_order]
        yield Found(
            level=Level.WARNING,
            subject=named(in_order[-1][1]),
            text=f"`{name}` is {', '.join(parts)}",
            why="a program of a slice needs the same value on all its workers",
            facts={"name": name, "values": [{"value": value, "workers": numbers} for value, numbers in in_order]},
        )
    if not differs:
        yield Found(level=Level.OK, subject=named(variables), text="variables of TPU programs are the same on all")


RULES = (log_variables, backend_variables, same_variables)
