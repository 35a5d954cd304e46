"""Decide what to do next to bring a node where it is wanted."""

from tpuctl.readiness.rules import decide, interval
from tpuctl.readiness.values import (
    Answer,
    Create,
    Decision,
    Delete,
    GiveUp,
    Goal,
    Policy,
    Reached,
    Reboot,
    Repair,
    Restart,
    Seen,
    Start,
    Verb,
    Wait,
)
from tpuctl.readiness.words import describe_answers, unanswered

__all__ = [
    "Answer",
    "Create",
    "Decision",
    "Delete",
    "GiveUp",
    "Goal",
    "Policy",
    "Reached",
    "Reboot",
    "Repair",
    "Restart",
    "Seen",
    "Start",
    "Verb",
    "Wait",
    "decide",
    "describe_answers",
    "interval",
    "unanswered",
]
