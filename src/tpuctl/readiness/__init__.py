"""Decide the next action that brings a node to its goal."""

from tpuctl.readiness.decisions import Create, Decision, Delete, GiveUp, Next, Reached, Reboot, Restart, Start, Wait
from tpuctl.readiness.pacing import interval
from tpuctl.readiness.rules import decide, shows
from tpuctl.readiness.values import (
    LEVELS,
    Answer,
    Failure,
    Goal,
    Pace,
    Policy,
    Repair,
    Seen,
    Silence,
    Startup,
    Thresholds,
    Tried,
    Verb,
    WorkerSeen,
)
from tpuctl.readiness.words import describe_answers, matrix

__all__ = [
    "LEVELS",
    "Answer",
    "Create",
    "Decision",
    "Delete",
    "Failure",
    "GiveUp",
    "Goal",
    "Next",
    "Pace",
    "Policy",
    "Reached",
    "Reboot",
    "Repair",
    "Restart",
    "Seen",
    "Silence",
    "Start",
    "Startup",
    "Thresholds",
    "Tried",
    "Verb",
    "Wait",
    "WorkerSeen",
    "decide",
    "describe_answers",
    "interval",
    "matrix",
    "shows",
]
