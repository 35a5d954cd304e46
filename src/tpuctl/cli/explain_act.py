"""What `tpuctl explain --act` does: the remedy that tpuctl can do itself, as the command of its own that it is."""

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

# What may be done for each kind of remedy; the first where the remedy's own words name none of them.
_COMMANDS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.WAIT: ("wait",),
    Action.RESTART_NODE: ("reset", "start"),
    Action.RECREATE_NODE: ("up",),
    Action.KILL_STALE_PROCESS: ("unstick",),
}
_OURS: Final = re.compile(r"`tpuctl (?P<words>[^`]{1,200})`")
# These ask by themselves, each showing what it is about to do.
_ASK_THEMSELVES: Final = frozenset({"reset", "unstick"})
_TAKE_YES: Final = frozenset({"reset", "unstick", "up"})


def act_on(app: App, explanation: Explanation, node: str, *, yes: bool) -> int:
    """Do the remedy of the first cause that tpuctl can do. Raises `TpuctlError` where there is none.

    Only what is sure is acted on. Making a node anew is only done where a look right before it shows that it is dead; a living
    one is left alone.
    """
    conclusion = _first(explanation)
    name, *others = words = [*_command(conclusion, node), *_narrowed(conclusion)]
    app.terminal.note(f"for `{conclusion.id}`: `{shlex.join(['tpuctl', *words])}`")
    _check_that_it_is_as_told(app, node, conclusion, is_to_be_dead=name == "up")
    if name not in _ASK_THEMSELVES and not app.terminal.confirm(f"run `{shlex.join(['tpuctl', *words])}`?", yes=yes):
        raise NotConfirmedError("nothing was done")
    return _run(app, [name, *others, *(["--yes"] if yes and name in _TAKE_YES else [])])


def _first(explanation: Explanation) -> Conclusion:
    for conclusion in explanation.conclusions:
        is_sure = conclusion.confidence is Confidence.HIGH and conclusion.symptom_of is None
        if is_sure and conclusion.sighting.message.action in _COMMANDS and conclusion.recovered is None:
            return conclusion
    told = explanation.conclusions[0]
    is_unsure = told.sighting.message.action in _COMMANDS
    why = (
        f"it is not sure enough that it is `{told.id}`" if is_unsure else f"it can do nothing itself about `{told.id}`"
    )
    raise TpuctlError(
        f"tpuctl does not act: {why}",
        hint="\n".join(filter(None, (told.why, *told.remedy))) or "nothing needs to be done",
    )


def _command(conclusion: Conclusion, node: str) -> list[str]:
    """Return the command of the remedy as it is told, so that what is done is what was read."""
    verbs = _COMMANDS[conclusion.sighting.message.action]
    for line in conclusion.remedy:
        for told in _OURS.finditer(line):
            verb, *others = shlex.split(told["words"])
            if verb in verbs and others[:1] == [node] and "recreate" not in others:
                return [verb, *others]
    return [verbs[0], node]


def _narrowed(conclusion: Conclusion) -> list[str]:
    """Return the options that keep `unstick` to the process that the log names: another may hold the TPU by now, rightly."""
    sighting = conclusion.sighting
    pid, worker = sighting.facts.get("pid"), sighting.first.worker
    if sighting.message.action is not Action.KILL_STALE_PROCESS or pid is None or len(sighting.workers) > 1:
        return []
    return [*(["--worker", worker] if worker and worker.isdigit() else []), "--pid", pid]


def _check_that_it_is_as_told(app: App, node: str, conclusion: Conclusion, *, is_to_be_dead: bool) -> None:
    """Look once more. Raises `ConflictError` for a node that lives and would be lost, or is younger than what the log tells."""
    try:
        found = app.find(node)
    except (NodeNotFoundError, NodeNowhereError):
        if is_to_be_dead:
            return
        raise
    if is_to_be_dead and not found.state.is_dead:
        raise ConflictError(
            f"`{node}` is {found.state}, so it is not made anew: what is on its disk would be lost",
            hint=f"if you mean it: `tpuctl reset {node} --mode recreate`",
        )
    met = conclusion.sighting.last.time
    if found.created is not None and met is not None and met.tzinfo is not None and met < found.created:
        raise ConflictError(f"the log is older than `{node}`, which was made anew since", hint="nothing was done")


def _run(app: App, arguments: list[str]) -> int:
    from tpuctl.cli.tree import root  # noqa: PLC0415  # built already

    tree = root()
    with tree.make_context("tpuctl", arguments, obj=app) as context:
        return int(tree.invoke(context) or ExitCode.OK)
