"""Pictures of the guides, from the tables of the code: the life of a node, the repair ladder, a job through a preemption.

They are as wide as a phone, and follow the colours of the reader's system.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tpuctl.config.settings import SETTINGS
from tpuctl.models.node import NodeState
from tpuctl.nodes.conditions import Condition, Repair
from tpuctl.nodes.kept_jobs import Verdict

_WIDTH, _BOX, _HEIGHT, _GAP = 390, 140, 44, 18
_STYLE = """
    .paper { fill: #ffffff } .box { fill: #e0f2f1; stroke: #00695c } .bad { fill: #fdecea; stroke: #b3261e }
    .line { stroke: #5f6b6d; fill: none } .tip { fill: #5f6b6d } text { fill: #12343b; font: 13px system-ui, sans-serif }
    .name { font: 600 13px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #12191b } .box { fill: #1d3b3f; stroke: #4db6ac } .bad { fill: #43211f; stroke: #f2b8b5 }
      .line { stroke: #9aa7a9 } .tip { fill: #9aa7a9 } text { fill: #e6eeee }
    }
"""


@dataclass(frozen=True)
class Stage:
    """A box, and the lines beside it."""

    name: str
    lines: tuple[str, ...]
    is_bad: bool = False


def life() -> str:
    """Return the picture of the life of a node."""
    return _draw(
        "The life of a node",
        [
            Stage("tpuctl up", ("checks, then requests it in one", "zone after the other, or queued")),
            Stage(NodeState.CREATING, ("never repaired, only awaited",)),
            Stage(NodeState.READY, (f"level `{Condition.READY}`: billed from here",)),
            Stage(str(Condition.HEALTHY), ("the service reports HEALTHY",)),
            Stage(str(Condition.SSH), ("every worker answers:", "usable, unless --for says more")),
            Stage(
                NodeState.PREEMPTED,
                ("a dead record: watch and up", "delete it and create it again"),
                is_bad=True,
            ),
            Stage("tpuctl down", ("or its time limit: the guard", "on worker 0 deletes it")),
            Stage("gone", ("every zone answered without it",)),
        ],
    )


def repair() -> str:
    """Return the picture of the repair ladder."""
    budgets = {Repair.REBOOT: "max_reboots", Repair.RESTART: "max_restarts", Repair.RECREATE: "max_recreates"}
    what = {
        Repair.REBOOT: "every worker over ssh",
        Repair.RESTART: "stop, wait, start; one worker only",
        Repair.RECREATE: "delete, create: the disk is lost",
    }
    steps = [
        Stage(str(step), (what[step], f"at most {_setting(budgets[step])}; {_allowed(step)}"))
        for step in Repair
        if step is not Repair.NONE
    ]
    return _draw(
        "The repair ladder",
        [
            Stage(
                "too long",
                (f"unhealthy for {_setting('unhealthy_after')},", "silent, or stuck in a state"),
                is_bad=True,
            ),
            *steps,
            Stage("given up", ("exit code 10; the node stays", "as it is, and is billed"), is_bad=True),
        ],
    )


def survives() -> str:
    """Return the picture of a job that a preemption interrupts."""
    return _draw(
        "A job through a preemption",
        [
            Stage("run --keep", ("the code is stored, the job starts", "on all workers: attempt 1")),
            Stage("checkpoint", ("the program saves to a bucket",)),
            Stage("notice", ("10 to 30 s before, the job", "gets TERM: a last checkpoint"), is_bad=True),
            Stage(
                NodeState.PREEMPTED,
                (f"verdict `{Verdict.PREEMPTED}`", "at once, no failure of yours"),
                is_bad=True,
            ),
            Stage("new node", ("in the first of its zones and", "tiers that has capacity")),
            Stage("attempt 2", ("the same code and command:", "it reads the newest checkpoint")),
            Stage(Verdict.SUCCEEDED, ("0 on all workers: done;", "--rm deletes the node")),
        ],
    )


def _setting(key: str) -> str:
    return str(SETTINGS[key].default)


def _allowed(step: Repair) -> str:
    return "allowed" if Repair(_setting("repair")).allows(step) else f"needs --repair {step}"


def _draw(title: str, stages: list[Stage]) -> str:
    """Return the boxes below one another, joined by arrows."""
    height = len(stages) * (_HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="paper" width="{_WIDTH}" height="{height}" rx="8"/>',
    ]
    middle = 12 + _BOX / 2
    for at, stage in enumerate(stages):
        top = _GAP + at * (_HEIGHT + _GAP)
        kind = "bad" if stage.is_bad else "box"
        parts.append(f'  <rect class="{kind}" x="12" y="{top}" width="{_BOX}" height="{_HEIGHT}" rx="6"/>')
        parts.append(f'  <text class="name" x="{middle:g}" y="{top + _HEIGHT / 2 + 5:g}">{escape(stage.name)}</text>')
        first = top + _HEIGHT / 2 + 5 - 9 * (len(stage.lines) - 1)
        parts += [
            f'  <text x="{_BOX + 24}" y="{first + 18 * number:g}">{escape(line.replace("`", ""))}</text>'
            for number, line in enumerate(stage.lines)
        ]
        if at + 1 < len(stages):
            bottom = top + _HEIGHT
            parts.append(f'  <path class="line" d="M{middle:g} {bottom} V{bottom + _GAP - 6}"/>')
            tip = bottom + _GAP - 1
            parts.append(f'  <path class="tip" d="M{middle:g} {tip} l-5 -7 h10 z"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
