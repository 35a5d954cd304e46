"""What `tpuctl explain --act` does: the remedy that tpuctl can do itself, as the command of its own that it is."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.explanation import Confidence
from tpuctl.diagnosis.messages import Action
from tpuctl.errors import ConflictError, ExitCode, NodeNotFoundError, NodeNowhereError, NotConfirmedError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.cli.app import App
    from tpuctl.diagnosis.explanation import Conclusion, Explanation

_COMMANDS: Final[Mapping[Action, str]] = {
    Action.WAIT: "wait",
    Action.RESTART_NODE: "reset",
    Action.RECREATE_NODE: "up",
    Action.KILL_STALE_PROCESS: "unstick",
}
# These ask by themselves, each showing what it is about to do.
_ASK_THEMSELVES: Final = frozenset({"reset", "unstick"})


def act_on(app: App, explanation: Explanation, node: str, *, yes: bool) -> int:
    """Do the remedy of the first cause that tpuctl can do. Raises `TpuctlError` where there is none.

    Making a node anew is only done where a look right before it shows that it is dead; a living one is left alone.
    """
    conclusion = _first(explanation)
    name = _COMMANDS[conclusion.sighting.message.action]
    arguments = [name, node, *(["--yes"] if yes and name in {*_ASK_THEMSELVES, "up"} else [])]
    app.terminal.note(f"for `{conclusion.id}`: `{shlex.join(['tpuctl', name, node])}`")
    if name == "up":
        _check_that_it_is_dead(app, node)
    if name not in _ASK_THEMSELVES and not app.terminal.confirm("do this?", yes=yes):
        raise NotConfirmedError("nothing was done")
    return _run(app, arguments)


def _first(explanation: Explanation) -> Conclusion:
    for conclusion in explanation.conclusions:
        is_sure = conclusion.confidence is not Confidence.LOW and conclusion.symptom_of is None
        if is_sure and conclusion.sighting.message.action in _COMMANDS and conclusion.recovered is None:
            return conclusion
    told = explanation.conclusions[0]
    raise TpuctlError(
        f"tpuctl can do nothing itself about `{told.id}`", hint="\n".join(told.remedy) or "nothing needs to be done"
    )


def _check_that_it_is_dead(app: App, node: str) -> None:
    """Look once more. Raises `ConflictError` for a node that lives: what is on it would be lost."""
    try:
        found = app.find(node)
    except (NodeNotFoundError, NodeNowhereError):
        return
    if not found.state.is_dead:
        raise ConflictError(
            f"`{node}` is {found.state}, so it is not made anew: what is on its disk would be lost",
            hint=f"if you mean it: `tpuctl reset {node} --mode recreate`",
        )


def _run(app: App, arguments: list[str]) -> int:
    from tpuctl.cli.tree import root  # noqa: PLC0415  # built already

    tree = root()
    with tree.make_context("tpuctl", arguments, obj=app) as context:
        return int(tree.invoke(context) or ExitCode.OK)
