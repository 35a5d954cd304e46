"""The disturbances of a stage: initial nodes, faults of single nodes, faults of all calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from tests.nodes.simulation.clock import Killed
from tests.nodes.simulation.ledger import Happening
from tests.nodes.simulation.plan import CallFault, InitialState, Life, NodeFault
from tests.nodes.simulation.stage import Stage
from tpuctl.sandbox import administration, faults, lifecycle
from tpuctl.sandbox.faults import Fault, FaultKind, durations_of
from tpuctl.sandbox.lifecycle import (
    LifecyclePhase,
    PhaseDurations,
    Timeline,
    delete_timeline,
    stop_timeline,
    timeline_until,
)
from tpuctl.sandbox.state_session import NodeRecord

ASKED, OTHER = "tpu-ubuntu2204-base", "tpu-vm-tf-2.16.1-pjrt"
_HEALTHY = "HEALTHY"
_WORDS = {3: "Invalid value for field 'runtimeVersion'."}
_FAR = timedelta(days=30)


def prepare(stage: Stage) -> None:
    """Add the initial nodes, and schedule the faults."""
    administration.set_setting(stage.state, "keep_failed_nodes", stage.plan.seed % 3 == 0 or None)
    for life in stage.plan.lives:
        if life.found:
            _find(stage, life, life.found)
        for blow in life.faults:
            strike = _striking(stage, life, blow)
            if blow.kind == "interlope":
                strike = partial(stage.interlopers.update, {life.name: strike})
            stage.clock.at(blow.at, strike) if blow.at else strike()
    for weather in stage.plan.weather:
        stage.clock.at(weather.at, _changing(stage, weather))
    if stage.plan.login_ends is not None:
        ended = CallFault(
            at=stage.plan.login_ends, kind="http-error", status=403 if stage.plan.seed % 2 else 401, times=0
        )
        stage.clock.at(ended.at, _changing(stage, ended))
    for moment, how in stage.plan.kills:
        stage.clock.at(moment, _killing(stage, how))


def _killing(stage: Stage, how: str) -> Callable[[], None]:
    def kill() -> None:
        if not stage.is_alive:
            return
        if how == "asleep":
            raise Killed
        stage.dies_in_call = how

    return kill


def _changing(stage: Stage, weather: CallFault) -> Callable[[], None]:
    fault = Fault(
        FaultKind(weather.kind),
        method=weather.method,
        status=weather.status,
        count=0 if weather.kind == "unreachable" else weather.times,
        duration=weather.lasts if weather.kind == "slow" else None,
    )

    def change() -> None:
        with stage.state.write() as session:
            number = faults.add_fault(session, fault)
        stage.settle()
        if weather.kind == "unreachable":
            stage.clock.at(stage.clock.monotonic() + weather.lasts, lambda: _clear(stage, number))

    return change


def _clear(stage: Stage, number: int) -> None:
    with stage.state.write() as session:
        faults.remove_fault(session, number)
    stage.settle()


def _find(stage: Stage, life: Life, found: InitialState) -> None:
    now = stage.clock.now()
    version = OTHER if found.differs else ASKED
    _put(stage, life, found.state, version=version, age=found.age)
    phases = [LifecyclePhase(now - found.age, found.state, found.health)]
    if found.lasts is not None:
        phases.append(LifecyclePhase(now + found.lasts, found.then, _HEALTHY if found.then == "READY" else ""))
    stage.keep(life.name, tuple(phases))


def _put(stage: Stage, life: Life, state: str, *, version: str = ASKED, age: timedelta = timedelta()) -> None:
    administration.add_node(
        stage.state,
        life.node_id,
        state=state if state in lifecycle.STATES else "READY",
        zone=life.zone,
        age=age,
        acceleratorType=life.accelerator_type,
        runtimeVersion=version,
        schedulingConfig={"spot": True} if life.spot else {},
    )
    stage.refresh(life.name)


def _striking(stage: Stage, life: Life, blow: NodeFault) -> Callable[[], None]:
    def strike() -> None:
        before = stage.refresh(life.name)
        if _strike(stage, life, blow, before):
            after = stage.refresh(life.name)
            stage.ledger.happenings.append(Happening(stage.clock.now(), blow.kind, life.name, before, after))

    return strike


def _strike(stage: Stage, life: Life, blow: NodeFault, record: NodeRecord | None) -> bool:
    """Apply a fault to a node. Return whether its state allowed that."""
    if fault := _fault(life, blow):
        with stage.state.write() as session:
            faults.add_fault(session, fault)
        return True
    phase, now = stage.phase(life.name), stage.clock.now()
    if record is None or phase is None:
        return False
    if blow.kind == "silent":
        until = None if blow.lasts is None else now + blow.lasts
        stage.ledger.silences.setdefault(life.name, []).append((record.number, now, until))
        return phase.state == "READY"
    if blow.kind in {"recreate", "interlope"}:
        _put(stage, life, blow.word)
        return True
    with stage.state.read() as session:
        timeline = _changed(blow, record, phase, now, durations_of(session, record))
    if timeline is not None:
        stage.keep(life.name, timeline)
    return timeline is not None


def _fault(life: Life, blow: NodeFault) -> Fault | None:
    """Return the fault of the sandbox for this fault; None if it has none."""
    fault = Fault(FaultKind.HANG, node=life.node_id, count=blow.times)
    match blow.kind:
        case "hang":
            return replace(fault, state=blow.word, duration=blow.lasts)
        case "sick-after":
            return replace(fault, kind=FaultKind.UNHEALTHY, health=blow.word)
        case "fails":
            method, _, code = blow.word.partition(" ")
            return replace(
                fault,
                kind=FaultKind.OPERATION_ERROR,
                method=f"*.nodes.{method}",
                code=int(code),
                message=_WORDS.get(int(code), ""),
            )
        case "quota":
            return replace(fault, kind=FaultKind.QUOTA)
        case "maintenance":
            return replace(fault, kind=FaultKind.MAINTENANCE, after=timedelta(minutes=3), duration=blow.lasts)
    return None


def _changed(
    blow: NodeFault, record: NodeRecord, phase: LifecyclePhase, now: datetime, speed: PhaseDurations
) -> Timeline | None:
    """Return the timeline of a node after a fault; None if the fault does not apply to it."""
    past = timeline_until(record.timeline, now)
    well = LifecyclePhase(now + (blow.lasts or _FAR), "READY", _HEALTHY)
    is_ready = phase.state == "READY"
    match blow.kind:
        case "delete" if phase.state != "DELETING":
            return delete_timeline(record.timeline, now, speed)
        case "stop" if is_ready and record.workers == 1:
            return stop_timeline(record.timeline, now, speed)
        case "preempt" if phase.state in {"READY", "CREATING", "STARTING"}:
            return (*past, LifecyclePhase(now, blow.word))
        case "sick" if is_ready:
            return (*past, LifecyclePhase(now, "READY", blow.word), well)
        case "state" if is_ready:
            return (*past, LifecyclePhase(now, blow.word), *(() if blow.word in {"UNKNOWN", "HIDDEN"} else (well,)))
    return None
