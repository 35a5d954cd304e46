"""The bodies of `tpuctl sandbox`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.app.signals import TerminatedError
from tpuctl.app.state_paths import preflight_cache_file
from tpuctl.clock import SystemClock
from tpuctl.command_text import command_word
from tpuctl.config.settings import SourceKind
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import InvalidInputError, NotConfirmedError, NotFoundError
from tpuctl.files import MIB, expand_user_path, read_text_stream, read_user_text
from tpuctl.output.terminal import Cell, View, table_view
from tpuctl.sandbox import faults, scenarios, shims
from tpuctl.sandbox.administration import DEFAULT_PROJECT, DEFAULT_ZONE, advance_clock, read_status, reset_sandbox
from tpuctl.sandbox.fault_kinds import KIND_KEYS, FaultKind
from tpuctl.sandbox.faults import describe_fault, describe_time, parse_fault
from tpuctl.sandbox.request_log import EVENT_METHOD, client_name, follow_log, read_log
from tpuctl.sandbox.scenarios import play_scenario, read_scenario
from tpuctl.sandbox.seeding import apply_seed, read_seed
from tpuctl.sandbox.shims import (
    gcloud_environment,
    read_served_address,
    record_served_address,
    remove_served_address,
    shell_exports,
)
from tpuctl.sandbox.sshd.daemon import SshdUnavailableError
from tpuctl.sandbox.stock import describe_level, put_level, remove_levels, show_stock

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.sandbox.faults import Fault
    from tpuctl.sandbox.request_log import LoggedCall
    from tpuctl.sandbox.stock import StockLevel


def run_sandbox_serve(app: App, *, port: int) -> None:
    """Serve the sandbox on a local port, for gcloud, Google's libraries and curl, until Ctrl-C."""
    from tpuctl.sandbox.http_server import open_server  # noqa: PLC0415  # the whole API

    sandbox = app.services.sandbox
    try:
        opened = open_server(sandbox, port, log=app.terminal.note if app.is_verbose else None)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on port {port}: {error.strerror}", hint="leave `--port` out to use a free port"
        ) from error
    app.terminal.write(opened.url)
    app.terminal.flush()
    record_served_address(sandbox.path, opened.url)
    try:
        app.terminal.note(*_how_to_use(app, opened.url))
        opened.serve_forever()
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of a server: no message, exit code 0.
        pass
    finally:
        remove_served_address(sandbox.path, opened.url)
        opened.close()


def _how_to_use(app: App, url: str) -> list[str]:

    lines = ["for tpuctl:", f"  export TPUCTL_ENDPOINT={url} TPUCTL_PROJECT={DEFAULT_PROJECT}"]
    try:
        variables = gcloud_environment(
            app.services.sandbox.path, url, project=DEFAULT_PROJECT, zone=DEFAULT_ZONE, environ=app.invocation.environ
        )
    except SshdUnavailableError as error:
        return [*lines, f"no environment for gcloud: {error.message}"]
    lines += ['for gcloud (or run `eval "$(tpuctl sandbox env)"`):']
    # For a reader the new folder of PATH is enough.
    folder = variables.pop("PATH").partition(":")[0]
    shown = [f"export PATH={command_word('path', folder)}:$PATH", *shell_exports(variables).splitlines()]
    return [*lines, *(f"  {line}" for line in shown), "press Ctrl-C to stop"]


def run_sandbox_env(app: App, *, port: int | None) -> None:
    """Print shell variables that make gcloud use the served sandbox, with ssh to its workers."""
    state_file = app.sandbox_path
    url = f"http://127.0.0.1:{port}" if port else read_served_address(state_file)
    variables = gcloud_environment(
        state_file,
        url,
        project=_ours(app, "project") or DEFAULT_PROJECT,
        zone=_ours(app, "zone") or DEFAULT_ZONE,
        environ=app.invocation.environ,
    )
    app.terminal.document(shell_exports(variables))


def _ours(app: App, key: str) -> str | None:
    """Return a setting unless it comes from gcloud, whose project is a real one."""
    setting = app.settings_with({"zone": app.zones[0]} if app.zones else {})[key]
    if setting is None or setting.source.kind in {SourceKind.GCLOUD, SourceKind.CLOUDSDK}:
        return None
    return str(setting.value)


def run_sandbox_status(app: App) -> None:
    """Show the sandbox: its file, time and speed, nodes, remaining faults and planned events."""
    summary = read_status(app.services.sandbox)
    with app.services.sandbox.read() as session:
        events = [event for event in session.events() if not event.is_tick]
    faults = []
    for fault_id, fault in summary.faults:
        fields = {
            "kind": str(fault.kind),
            "node": fault.node,
            "zone": fault.zone,
            "call": fault.method,
            "times": fault.count,
            "state": fault.state if fault.kind == "hang" else "",
            "health": fault.health if fault.kind == "unhealthy" else "",
            "message": fault.message,
        }
        # Only the values that were set.
        faults.append({"id": fault_id, **{key: value for key, value in fields.items() if value not in {"", "*", None}}})
    values: dict[str, Any] = {
        "path": str(summary.path),
        "now": format_timestamp(summary.now),
        "speed": summary.speed,
        "nodes": summary.states,
        "queuedResources": summary.queued_states,
        "faults": faults,
        "events": [{"at": format_timestamp(event.at), "text": event.document.get("text")} for event in events],
    }
    rows = [("path", values["path"]), ("now", values["now"]), ("speed", f"{summary.speed:g} times real time")]
    rows += [(f"nodes of {project}", _format_counts(states)) for project, states in summary.states.items()]
    rows += [
        (f"queued resources of {project}", _format_counts(states)) for project, states in summary.queued_states.items()
    ]
    rows += [(f"fault {fault_id}", describe_fault(fault)) for fault_id, fault in summary.faults]
    rows += [(event["at"], event["text"]) for event in values["events"]]
    app.show(
        View(
            value=lambda: values,
            text=lambda terminal: terminal.details([(label, text, "") for label, text in rows]),
            is_marked=False,
        )
    )


def _format_counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())


# A seed may describe thousands of nodes.
_SEED_LIMIT = 64 * MIB


def run_sandbox_seed(app: App, *, file: str) -> None:
    """Add the resources of a YAML file (- for stdin) to the sandbox: all or none."""
    source, text = read_seed_source(app, file)
    entries = read_seed(text, source)
    apply_seed(app.services.sandbox, entries)
    counted = Counter(entry.kind for entry in entries)
    app.terminal.note(", ".join(f"{count} {kind}" for kind, count in counted.items()) or f"{source} is empty")


def read_seed_source(app: App, file: str) -> tuple[str, str]:
    """Return the name and the text of a file, or of stdin for `-`. Raises `InvalidInputError`."""
    if file == "-":
        return "stdin", read_text_stream(app.invocation.streams.stdin, limit=_SEED_LIMIT)
    return file, read_user_text(
        app.invocation.folder / expand_user_path(Path(file)), limit=_SEED_LIMIT, what=f"`{file}`"
    )


def run_sandbox_scenario(app: App, *, file: str) -> None:
    """Plan the events of a YAML file (- for stdin), from now on in sandbox time."""
    source, text = read_seed_source(app, file)
    scenario = read_scenario(text, source)
    begin = play_scenario(app.services.sandbox, scenario)
    lines = [scenario.description] if scenario.description else []
    speed = app.services.sandbox.speed
    lines += [f"{describe_time(begin + step.at, begin, speed)}: {step.text}" for step in scenario.steps]
    for line in lines or [f"{source} has no steps"]:
        app.terminal.note(line)


def run_sandbox_fault(app: App, *, kind: str | None, fault_id: int | None, after: Any, **options: Any) -> None:
    """Add a fault to the sandbox, to test how programs handle failures, or remove one."""
    if fault_id is not None:
        if kind is not None:
            raise InvalidInputError(f"`{kind}` and `--remove` exclude each other", hint="leave one of them out")
        with app.services.sandbox.write() as session:
            is_removed = faults.remove_fault(session, fault_id)
            known = faults.list_faults(session)
        if not is_removed:
            existing = "\n".join(f"fault {number}: {describe_fault(fault)}" for number, fault in known)
            raise NotFoundError(f"no fault {fault_id} in the sandbox", hint=existing or "the sandbox has no faults")
        report_change(app, f"removed fault {fault_id}", id=fault_id, removed=True)
        return
    if after == "forever":
        raise InvalidInputError("`--after` cannot be `forever`", hint="give a duration such as 2h")
    fault = _parse_options(kind, options)
    text = describe_fault(fault)
    number: int | None = None  # of a fault that waits for its occasion
    speed = app.services.sandbox.speed
    with app.services.sandbox.write() as session:
        if after:
            text = f"{faults.describe_time(session.now + after, session.now, speed)}: {text}"
            scenarios.plan_fault(session, fault, after)
        else:
            number = faults.add_fault(session, fault)
            if faults.get_fault(session, number) is None:
                number, text = None, f"now: {text}"
    report_change(app, f"fault {number}: {text}" if number else text, id=number, text=text)


def _parse_options(kind: str | None, options: dict[str, Any]) -> Fault:

    word = FaultKind.named(kind or "")
    values = {key: value for key, value in options.items() if value is not None}
    for key in ("node", "zone", "call"):
        if not values[key]:
            raise InvalidInputError(f"`--{key}` is empty and would match nothing", hint="leave it out to match all")
    for key in values.keys() & KIND_KEYS.keys():
        if key not in word.keys:
            kinds = ", ".join(KIND_KEYS[key].kinds(key))
            raise InvalidInputError(
                f"`{word}` has no `{KIND_KEYS[key].flag}`", hint=f"`{KIND_KEYS[key].flag}` is for {kinds}"
            )
    if values.get("duration") == "forever":
        del values["duration"]
        if word.duration:
            raise InvalidInputError(f"`{word}` cannot last forever", hint="give a duration such as 10m")
    if values.get("duration") == timedelta():
        raise InvalidInputError("`--duration` is 0s", hint="give a duration such as 10m")
    return parse_fault({"kind": word, **values})


_STOCK_HEADER = ("ZONE", "TYPE", "TIER", "NODES", "FREE", "FROM", "UNTIL")


def run_sandbox_stock(app: App, *, action: str | None, **options: Any) -> None:
    """Show the stock of the sandbox: how many nodes fit in a zone, by type and tier."""
    given = _parse_stock_options(action, options)
    if action is None:
        with app.services.sandbox.read() as session:
            entries = [
                {**_level_json(entry.level), "used": entry.used, "free": entry.free}
                for entry in show_stock(session, **given)
            ]
        columns = ("zone", "acceleratorType", "tier", "nodes", "free", "from", "until")
        app.show(
            table_view(
                _STOCK_HEADER,
                [[Cell("-" if entry[name] is None else str(entry[name])) for name in columns] for entry in entries],
                value=lambda: entries,
                empty="the stock is unlimited everywhere",
                is_marked=False,
            )
        )
    elif action == "clear":
        with app.services.sandbox.write() as session:
            count = remove_levels(session, **given)
        report_change(app, f"removed {count} stock {'entry' if count == 1 else 'entries'}", removed=count)
    else:
        with app.services.sandbox.write() as session:
            level = put_level(session, **given)
            begin = describe_time(
                session.now + given.get("after", timedelta()), session.now, app.services.sandbox.speed
            )
        lasting = f", for {format_duration(given['duration'])}" if "duration" in given else ""
        text = f"{begin}: {describe_level(level)}{lasting}"
        report_change(app, text, text=text, **_level_json(level))


def _parse_stock_options(action: str | None, options: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in options.items() if value is not None}
    for key, flag in (("zone", "--zone"), ("accelerator_type", "--type"), ("tier", "--tier")):
        if given.get(key) == "":
            raise InvalidInputError(f"`{flag}` is empty and would match nothing", hint="leave it out to match all")
    for key in ("after", "duration"):
        if given.get(key) == "forever":
            raise InvalidInputError(
                f"`--{key}` cannot be `forever`", hint="give a duration such as 2h, or leave it out"
            )
    amount = next((f"--{key}" for key in ("nodes", "after", "duration") if key in given), None)
    if action != "set" and amount:
        raise InvalidInputError(f"`{amount}` needs `set`", hint="run `tpuctl sandbox stock set --nodes N`")
    if action == "set" and "nodes" not in given:
        raise InvalidInputError("`tpuctl sandbox stock set` needs `--nodes N`", hint="`--nodes 0` is no capacity")
    return given


def _level_json(level: StockLevel) -> dict[str, Any]:
    return {
        "zone": level.zone,
        "acceleratorType": level.accelerator_type,
        "tier": level.tier,
        "project": level.project,
        "nodes": level.nodes,
        "from": format_timestamp(datetime.fromtimestamp(level.begin, UTC)),
        "until": format_timestamp(datetime.fromtimestamp(level.until, UTC)) if level.until is not None else None,
    }


def run_sandbox_advance(app: App, *, time: timedelta | str) -> None:
    """Advance the clock of the sandbox by TIME (10m, 2h), for every process that uses it."""
    if isinstance(time, str):
        raise InvalidInputError("the sandbox cannot advance by `forever`", hint="give a duration such as 10m")
    now = advance_clock(app.services.sandbox, time)
    text = f"sandbox time is now {format_timestamp(now)}, {format_duration(time)} later"
    report_change(app, text, now=format_timestamp(now))


_FOLLOW_INTERVAL = timedelta(milliseconds=200)


_LOG_HEADER = ("TIME", "METHOD", "STATUS", "CLIENT", "PATH")


def run_sandbox_log(app: App, *, since: timedelta | str | None, follow: bool) -> None:
    """Show the last requests to the sandbox (about 20 000), with client and response status."""
    sandbox = app.services.sandbox
    with sandbox.read() as session:
        begin = session.now - since if isinstance(since, timedelta) else None
    coming = follow_log(sandbox.path)
    next(coming) if follow else ()
    entries = list(read_log(sandbox.path, since=begin))
    if not follow:
        app.show(
            table_view(
                _LOG_HEADER,
                [_log_cells(entry) for entry in entries],
                value=lambda: [_log_json(entry) for entry in entries],
                is_marked=False,
            )
        )
    try:
        while follow:
            for entry in entries:
                app.show_entry(_log_json(entry), _log_cells(entry))
            app.terminal.flush()
            SystemClock().sleep(_FOLLOW_INTERVAL)
            entries = list(next(coming))
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of `--follow`.
        return


def _log_json(entry: LoggedCall) -> dict[str, Any]:
    return {
        "at": format_timestamp(entry.at),
        "method": entry.method,
        "path": entry.path,
        "status": entry.status or None,
        "client": entry.client,
    }


def _log_cells(entry: LoggedCall) -> list[Cell]:

    client = "-" if entry.method == EVENT_METHOD else client_name(entry.client)
    status = str(entry.status) if entry.status else "-"
    return [Cell(text) for text in (format_timestamp(entry.at), entry.method, status, client, entry.path)]


def run_sandbox_reset(app: App, *, yes: bool) -> None:
    """Remove the sandbox: its nodes, its faults, and the files on its workers."""
    path = app.sandbox_path
    if not app.terminal.confirm(f"remove the sandbox in {path.parent}?", yes=yes):
        raise NotConfirmedError("nothing was removed")
    # The results of earlier checks do not apply to a new sandbox.
    preflight_cache_file(app.invocation.environ, sandbox=True).unlink(missing_ok=True)
    try:
        served_at = read_served_address(path)
    except shims.NotServedError:
        served_at = None
    app.terminal.note("removed the sandbox" if reset_sandbox(path) else "there was no sandbox")
    if served_at:
        # The server continues with the new sandbox.
        record_served_address(path, served_at)


def report_change(app: App, sentence: str, /, **values: Any) -> None:  # JSON
    """Report a change: on stderr as a sentence, or on stdout as one object in the requested format."""
    app.show(View(value=lambda: values, text=lambda terminal: terminal.note(sentence), is_marked=False))
