"""`tpuctl explain --act`: run the tpuctl command of a remedy."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.explanation import Confidence
from tpuctl.diagnosis.messages import Action
from tpuctl.errors import ConflictError, ExitCode, NodeNotFoundError, NodeNowhereError, NotConfirmedError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.cli.app import App
    from tpuctl.diagnosis.explanation import Conclusion, Explanation

# The commands allowed for each kind of remedy; the first if the text of the remedy names none of them.
_COMMANDS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.WAIT: ("wait",),
    Action.RESTART_NODE: ("reset", "start"),
    Action.RECREATE_NODE: ("up",),
    Action.KILL_STALE_PROCESS: ("unstick",),
}
_OURS: Final = re.compile(r"`tpuctl (?P<words>[^`]{1,200})`")
# These ask for confirmation themselves, and show what they will do.
_ASK_THEMSELVES: Final = frozenset({"reset", "unstick"})
_TAKE_YES: Final = frozenset({"reset", "unstick", "up"})


def act_on(app: App, explanation: Explanation, node: str, *, yes: bool) -> int:
    """Run the remedy of the first cause for which tpuctl has a command. Raises `TpuctlError` if there is none.

    Acts only on certain verdicts. Recreates a node only if a new read shows that it is dead; a living node is left alone.
    """
    conclusion = _first_actionable(explanation)
    name, *others = words = _command(conclusion, node)
    line = shlex.join(["tpuctl", *words])
    app.terminal.note(f"for `{conclusion.id}`: `{line}`")
    _check_unchanged(app, node, conclusion, must_be_dead=name == "up")
    if name not in _ASK_THEMSELVES and not app.terminal.confirm(f"run `{line}`?", yes=yes):
        raise NotConfirmedError("nothing was done")
    from tpuctl.cli.tree import root  # noqa: PLC0415  # built already

    tree = root()
    arguments = [name, *others, *(["--yes"] if yes and name in _TAKE_YES else [])]
    with tree.make_context("tpuctl", arguments, obj=app) as context:
        return int(tree.invoke(context) or ExitCode.OK)


def _first_actionable(explanation: Explanation) -> Conclusion:
    for conclusion in explanation.conclusions:
        is_certain = conclusion.confidence is Confidence.HIGH and conclusion.symptom_of is None
        if is_certain and conclusion.sighting.message.action in _COMMANDS and conclusion.recovered is None:
            return conclusion
    first = explanation.conclusions[0]
    has_command = first.sighting.message.action in _COMMANDS
    why = f"`{first.id}` is not certain enough" if has_command else f"tpuctl has no command that fixes `{first.id}`"
    raise TpuctlError(
        f"`--act` does nothing: {why}",
        hint="\n".join(filter(None, (first.why, *first.remedy))) or "no action is needed",
    )


def _command(conclusion: Conclusion, node: str) -> list[str]:
    """Return the command as the remedy shows it, so that tpuctl runs what the user has read."""
    sighting = conclusion.sighting
    verbs = _COMMANDS[sighting.message.action]
    options: list[str] = []
    pid, worker = sighting.facts.get("pid"), sighting.first.worker
    if sighting.message.action is Action.KILL_STALE_PROCESS and pid is not None and len(sighting.workers) <= 1:
        # Limit `unstick` to the process in the log: another may hold the TPU by now, rightly.
        options = [*(["--worker", worker] if worker and worker.isdigit() else []), "--pid", pid]
    for line in conclusion.remedy:
        for quoted in _OURS.finditer(line):
            verb, *others = shlex.split(quoted["words"])
            if verb in verbs and others[:1] == [node] and "recreate" not in others:
                return [verb, *others, *options]
    return [verbs[0], node, *options]


def _check_unchanged(app: App, node: str, conclusion: Conclusion, *, must_be_dead: bool) -> None:
    """Read the node again. Raises `ConflictError` for a living node that would be lost, or one newer than the log."""
    try:
        found = app.find(node)
    except (NodeNotFoundError, NodeNowhereError):
        if must_be_dead:
            return
        raise
    if must_be_dead and not found.state.is_dead:
        raise ConflictError(
            f"`{node}` is {found.state}, so it is not recreated: the data on its disk would be lost",
            hint=f"to recreate it anyway: `tpuctl reset {node} --mode recreate`",
        )
    time = conclusion.sighting.last.time
    if found.created is not None and time is not None and time.tzinfo is not None and time < found.created:
        raise ConflictError(f"the log is older than `{node}`, which was recreated since", hint="nothing was done")
