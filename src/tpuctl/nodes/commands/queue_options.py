"""The options of a queued resource: how long it waits for capacity, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.durations import format_duration, format_timestamp, parse_duration, parse_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.nodes.commands.policy_options import deadline
from tpuctl.nodes.queueing import UNATTENDED_WAIT

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.models.spec import NodeSpec

_SHORTEST = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(GivenOptions):
    """The options of a queued resource besides those of the node."""

    queue_for: timedelta | str | None = option(
        "--queue-for",
        "--valid-until-duration",
        type=DurationType(),
        metavar="TIME",
        help="Time that the queued resource waits for capacity, at least 1m. [default: as long as the command waits]",
    )
    start_after: str | None = option(
        "--start-after",
        "--valid-after-time",
        "--valid-after-duration",
        metavar="TIME",
        help="Earliest time to create a queued node: 2026-12-01T08:00:00Z, or from now, such as 8h.",
    )


queue_options = takes_options(QueueOptions, "queueing", group=OptionGroup.PURCHASE)


def queue_policy(
    app: App, options: QueueOptions, spec: NodeSpec | None, *, timeout: timedelta | str | None, is_awaited: bool
) -> dict[str, Any]:
    """Return the time limit of the command and the limits of the queued resource, as fields of `Policy`.

    `is_awaited`: the command waits until there is a node.
    Raises `InvalidInputError` for options without a queue, and for limits that exclude one another.
    """
    limit = deadline(app, timeout)
    if spec is not None and not spec.is_queued:
        for name in options.given:
            raise InvalidInputError(
                f"`--{name.replace('_', '-')}` needs a queued resource", hint="add `--queue`, or leave it out"
            )
    wait = options.queue_for if isinstance(options.queue_for, timedelta) else None
    if wait is not None and wait < _SHORTEST:
        raise InvalidInputError(
            f"`--queue-for {format_duration(wait)}` is too short: the service needs longer to look for capacity",
            hint="give it at least 1m",
        )
    if options.queue_for is None and not is_awaited and spec is not None and spec.is_queued:
        # The deadline of the command says nothing about the request.
        wait = UNATTENDED_WAIT
    if options.queue_for is not None and wait is None:
        if timeout is not None and is_awaited:
            raise InvalidInputError(
                "cannot combine `--queue-for forever` and `--timeout`: the request would outlive the command",
                hint="leave `--timeout` out, or name a time such as `--queue-for 24h`",
            )
        limit = None
    begin = None if options.start_after is None else _parse_start(app, options.start_after)
    if wait is not None and timeout is None and limit is not None:
        # The command waits for the request, and then for the node.
        limit += wait
    end = wait if wait is not None else limit
    if begin is not None and end is not None and begin >= app.now() + end:
        raise InvalidInputError(
            f"`--start-after {options.start_after}` ({format_timestamp(begin)}) is after the end of the request, in "
            f"{format_duration(end)}",
            hint="let it wait for longer: `--queue-for 12h`",
        )
    return {"timeout": limit, "queue_for": wait, "start_after": begin}


def _parse_start(app: App, text: str) -> datetime:
    moment = parse_timestamp(text) if "-" in text else None
    if moment is None:
        try:
            return app.now() + parse_duration(text)
        except ValueError:
            raise InvalidInputError(
                f"`--start-after {text}` is not a time", hint="write it like 2026-12-01T08:00:00Z, or like 8h"
            ) from None
    if moment <= app.now():
        raise InvalidInputError(f"`--start-after {text}` is past", hint="leave it out to start at once")
    return moment.astimezone(UTC)
