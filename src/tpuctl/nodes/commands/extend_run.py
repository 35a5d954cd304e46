"""The body of `tpuctl extend`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp, parse_duration, parse_long_duration
from tpuctl.errors import ConflictError, ExitCode, InvalidInputError, NotFoundError, TpuctlError, worst_exit_code
from tpuctl.nodes.actions import change_expiry
from tpuctl.nodes.actuator import PATCHABLE_STATES
from tpuctl.nodes.commands.selection_options import parse_labelled
from tpuctl.nodes.expiry import LimitChange, NodeEnd, extended_expiry
from tpuctl.nodes.lookup import search_requested_name, select_nodes
from tpuctl.nodes.rendering import expiry_view
from tpuctl.nodes.time_limits import check_time_left, confirm_limits, next_moment, note_clock_difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App
    from tpuctl.models.node import Node


_EXAMPLE = "write it like `tpuctl extend NODE 2h`"


@dataclass(frozen=True, slots=True)
class _Extension:
    """What to do with the end of a node's time: move it by a duration, set it, or remove it."""

    by: timedelta | None = None
    until: timedelta | time | datetime | None = None

    def new_end(self, node: Node, now: datetime) -> datetime | None:
        """Return the new end of a node, None for none. `now` is the service's time.

        Raises `InvalidInputError` if it has passed, or is more than a year from now.
        """
        if self.until is not None:
            end = next_moment(self.until, now)
            check_time_left(f"--until {format_timestamp(end)}", end - now)
            return end.replace(microsecond=0)
        if self.by is None:
            return None
        end = extended_expiry(node, self.by, now)
        check_time_left(f"extend {node.name.node_id} {format_duration(self.by)}", end - now)
        return end

    def change_of(self, node: Node, now: datetime) -> LimitChange:
        """Return the change of a node. Raises `InvalidInputError` as `new_end`."""
        end = self.new_end(node, now)
        return LimitChange(end=NodeEnd(end))


def run_extend(
    app: App,
    *,
    words: tuple[str, ...],
    selector: tuple[str, ...],
    until: timedelta | time | datetime | None,
    no_expiry: bool,
    yes: bool,
) -> int:
    """Move the end of the time of nodes."""
    names, extension = _parse(app, words, until=until, no_expiry=no_expiry)
    nodes = _find_nodes(app, names, selector)
    note_clock_difference(app)
    movable = [node for node in nodes if node.state in PATCHABLE_STATES]
    confirm_limits(app, [(node, extension.change_of(node, app.now())) for node in movable], yes=yes)
    changed: list[Node] = []
    errors: list[TpuctlError] = []
    with app.progress() as progress:
        context = app.services.context(progress)
        for node in nodes:
            try:
                end = _bound(extension, app, seen=node, owner=None if yes else app.services.owner_label)
                changed.append(change_expiry(context, node, end, timeout=app.settings.duration("timeout")))
            except TpuctlError as error:
                error.node = node.name.node_id
                errors.append(error)
    if len(errors) == 1 and len(nodes) == 1:
        raise errors[0]
    app.show(expiry_view(app, changed, is_list=len(nodes) > 1))
    for failure in errors:
        app.show_error(failure)
    return worst_exit_code(failure.exit_code for failure in errors) if errors else ExitCode.OK


def _bound(extension: _Extension, app: App, *, seen: Node, owner: str | None) -> Callable[[Node], datetime | None]:
    """Return what finds the new end of a node right before the change. With an `owner`, only for the node as it was `seen`.

    Another client may have changed it since the user was asked: it raises `ConflictError` if that is a reason to ask again.
    """

    def new_end(node: Node) -> datetime | None:
        change = extension.change_of(node, app.now())
        is_same = (node.expires, node.owner) == (seen.expires, seen.owner)
        if owner is not None and not is_same and (reasons := change.objections(node, owner)):
            raise ConflictError(
                f"another client changed `{node.name.node_id}`: {'; '.join(reasons)}",
                hint="nothing was done; run the command again",
            )
        return change.end.at if change.end else None

    return new_end


def _parse(
    app: App, words: tuple[str, ...], *, until: timedelta | time | datetime | None, no_expiry: bool
) -> tuple[tuple[str, ...], _Extension]:
    """Return the names of the nodes, and what to do. Raises `InvalidInputError` unless exactly one change is named."""
    if until is not None and no_expiry:
        raise InvalidInputError("cannot combine `--until` and `--no-expiry`", hint="remove one of them")
    if no_expiry:
        return words, _Extension()
    if until is not None:
        now = app.clock.now()  # before the first answer of the API
        end = next_moment(until, now)
        check_time_left(f"--until {format_timestamp(end)}", end - now)
        if words and _is_duration(words[-1]):
            text = f"`{words[-1]}` and `--until` exclude each other"
            raise InvalidInputError(text, hint="give the time to add, or the new end")
        return words, _Extension(until=until)
    if not words:
        raise InvalidInputError("no time given", hint=_EXAMPLE)
    *names, last = words
    if last in {"forever", "never", "none"}:
        nodes = " ".join(names) or "NODE"
        raise InvalidInputError(f"`{last}` is no time", hint=f"remove the limit: `tpuctl extend {nodes} --no-expiry`")
    try:
        by = parse_long_duration(last)
    except ValueError as error:
        raise InvalidInputError(f"no time given: {error}", hint=_EXAMPLE) from None
    check_time_left(f"extend … {last}", by)
    return tuple(names), _Extension(by=by)


def _is_duration(word: str) -> bool:
    try:
        return bool(parse_duration(word))
    except ValueError:
        return False


def _find_nodes(app: App, names: tuple[str, ...], selector: tuple[str, ...]) -> list[Node]:
    """Return the named or selected nodes, each once. Raises `NotFoundError` if one does not exist, also if it is requested."""
    selection = parse_labelled(app, names, selector)
    if not selection.is_by_name:
        return list(select_nodes(app, selection).complete())
    found: list[Node] = []
    for text in (name.text for name in selection.names):
        try:
            found.append(app.services.find(text))
        except NotFoundError as error:
            reference = app.reference(text)
            zone = reference.zone or app.place.zone
            requested = search_requested_name(app.services.client, app.project, reference, (zone,) if zone else ())
            if requested is not None:
                error.hint = (
                    f"its queued resource still waits, and has no node yet; the label of a request cannot be changed: "
                    f"`tpuctl queue cancel {requested.zone}/{requested.node_id}` ends it"
                )
            raise
    return found
