"""The Python API: bring TPUs up, run programs on them and delete them, from a program. docs/python.md describes it.

A `Client` calls the same functions of the rooms as the commands do; it knows neither click nor the terminal. Each call works
with an `App` of its own, so that calls in several threads, and several clients in one process, do not disturb one another.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from tpuctl.app.app import ANY_ZONE, App, Invocation
from tpuctl.app.spec_building import complete_spec
from tpuctl.app.ssh_options import refresh_ssh_entries, shared_connection_options
from tpuctl.check.preflight import preflight_check
from tpuctl.clock import SystemClock
from tpuctl.config.settings import SETTINGS, check_value_form, invalid_value_error, parse_setting
from tpuctl.durations import LONGEST_DURATION, format_duration
from tpuctl.errors import InvalidInputError, RemoteCommandError, SettingError, TpuctlError
from tpuctl.escaping import escape_unprintable
from tpuctl.models.node import Node, Tier, WorkerSet
from tpuctl.models.spec import FIELDS, NodeSpec
from tpuctl.models.spec_fields import SWITCH, TEXTS, setting_key
from tpuctl.names import NodeName
from tpuctl.nodes.bring_up import UpRequest, bring_up
from tpuctl.nodes.conditions import USABLE_CONDITIONS, Condition
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.group_lookup import check_whole_request
from tpuctl.nodes.lookup import IncompleteListError, by_zone_and_name, locate_for_wait
from tpuctl.nodes.named_deletion import delete_groups, find_named, note_missing, require_undisputed
from tpuctl.nodes.policies import deadline, idle_change, queue_policy, repair_policy, within_deadline
from tpuctl.nodes.time_limits import TimeLimit, check_time_left
from tpuctl.nodes.waiting import plan_wait
from tpuctl.output.log_terminal import LogTerminal, log_event
from tpuctl.output.progress import ChangeLines
from tpuctl.output.terminal import StandardStreams, Terminal
from tpuctl.spelling import closest_match
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.workers.captured_run import JobInfo, WorkerFiles, read_captured, run_captured
from tpuctl.workers.copying import CopyOptions, download, list_local_files, parse_copy_request, upload
from tpuctl.workers.environment import EnvironmentOptions, parse_variable
from tpuctl.workers.execution import shell_line
from tpuctl.workers.file_tree import default_worker_folder, read_tree
from tpuctl.workers.node_jobs import list_all_jobs
from tpuctl.workers.run_tree import RunTree, sync_before_run
from tpuctl.workers.runner import RunRequest
from tpuctl.workers.syncing import SyncRequest, sync_workers
from tpuctl.workers.targets import await_key, find_node, find_targets
from tpuctl.workers.worker_jobs import JobScope, check_job_name, list_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tpuctl.clock import Clock
    from tpuctl.models.events import NodeEvent
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.lookup import WaitTarget
    from tpuctl.nodes.resource_group import ResourceGroup
    from tpuctl.workers.captured_run import CommandResult, OutputPiece

Timeout = timedelta | Literal["forever"] | None
Setting = str | bool | float | timedelta | Path | Sequence[str] | Mapping[str, str]


class Client:
    """Access to the TPUs of one project, on Google Cloud or in the sandbox.

    Arguments override environment variables, which override the user's settings file and gcloud's configuration, as for the
    commands. A `tpuctl.yaml` of the working directory does not count: name it with `project_file`; what it sets then
    needs the same trust as for the commands. Everything is read once, here.

    A client may be used by several threads at the same time, and a process may have several clients. It writes nothing to
    stdout, and to stderr only progress; it asks nothing, catches no signal and never ends the process. Messages go to the
    logger `tpuctl`.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        zone: str | Sequence[str] | None = None,
        sandbox: bool | None = None,
        project_file: Path | str | None = None,
        state_dir: Path | str | None = None,
        settings: Mapping[str, Setting] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        progress: bool | None = None,
    ) -> None:
        """Read the settings. No request is sent.

        `zone` is a zone, several or `"any"`; a node's name may have its own, `ZONE/NODE`.
        `sandbox` chooses the local cloud, which needs no account. `state_dir` is where journal, leases and the sandbox are
        kept. `settings` are further settings by their key (docs/reference/settings.md). `environ` replaces `os.environ`.
        `clock` is for tests in the sandbox: with a `ManualClock` no wait takes time. With `progress` lines on stderr say what
        `up`, `down` and `wait` do and wait for; by default on a terminal and in a notebook.

        Raises `SettingError` for a file, a variable or one of the `settings` that is invalid, and `InvalidInputError` for a
        clock without the sandbox.
        """
        if project_file is not None and not Path(project_file).is_file():
            raise SettingError(f"there is no file `{project_file}`", hint="name a tpuctl.yaml with `project_file`")
        variables = dict(os.environ if environ is None else environ)
        # A summary is of a step that runs the command.
        variables.pop("GITHUB_STEP_SUMMARY", None)
        if state_dir is not None:
            variables["TPUCTL_STATE_DIR"] = str(Path(state_dir).absolute())
        streams = StandardStreams(io.StringIO(), io.StringIO(), io.StringIO())
        invocation = Invocation((), variables, streams, Path(), clock, searches_project_file=False)
        options: dict[str, Any] = {
            **_as_flags(settings or {}),
            "project": project,
            "sandbox": sandbox,
            "zone": _zones(zone),
            "spec_file": Path(project_file).absolute() if project_file is not None else None,
        }
        self._app = App(invocation, LogTerminal(variables)).set_options(options)
        self._is_closed = False
        self._shows_progress = _has_reader() if progress is None else progress
        if clock is not None and not self._app.is_sandbox:
            raise InvalidInputError("`clock` is for the sandbox only", hint="leave it out, or pass `sandbox=True`")
        # An invalid value must not be found by the call that deletes the node.
        self._app.settings.for_display().check()
        # Now, so that no thread waits for another.
        if not self._app.is_sandbox:
            _ = self._app.services.http

    def __getstate__(self) -> NoReturn:
        """Refuse to be sent to another process, with all variables of this one."""
        raise TypeError("a `Client` cannot be pickled: make one in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the API. Nodes stay as they are."""
        self._is_closed = True
        self._app.close()

    def up(
        self,
        node: str | NodeName,
        spec: NodeSpec | None = None,
        *,
        wait_for: Condition | str | None = None,
        timeout: Timeout = None,
        ttl: timedelta | None = None,
        zone: str | Sequence[str] | None = None,
        tiers: Sequence[Tier | str] = (),
        replace: bool = False,
        allow_failed_startup: bool = False,
        yes: bool = False,
        on_event: Callable[[NodeEvent], None] | None = None,
    ) -> Node:
        """Create, start or repair a node, wait until it is usable, and return it. Call it again at any time.

        Without a `spec` the node must exist, or it gets the spec that it had before, which needs `yes`; `NodeSpec()` is that of
        the settings. `wait_for` is a condition from `ready` to `devices`; by default `ssh`, or `healthy` where workers cannot
        be reached. `timeout` is by default the setting `timeout` (30 minutes). After `ttl` the node may be deleted. `zone` is
        that of this call: of several, or of `"any"`, the first with capacity. `tiers` are tried in their order; that of the
        spec is one of them. With `startup` or `devices` a failed startup script is a `FailedStartupError`, unless
        `allow_failed_startup`. `replace` deletes and recreates a node that differs from the spec, if `yes`. With `yes` a node
        in use is repaired, too. `on_event` gets each event, in this thread; what it raises ends the call.

        Raises `ConflictError` if the node differs from the spec, `NoCapacityError`, `QuotaError`, `CheckFailedError` before a
        creation, `TimedOutError` (the node stays, and may bill), `BrokenNodeError`, `NotConfirmedError` and other
        `TpuctlError`.
        """
        _check_timeout(timeout, may_be_endless=True)
        goal = _condition(wait_for, USABLE_CONDITIONS)
        tried = _tiers(spec, tiers)
        limit = _time_limit(ttl)
        described = _as_settings(spec, tried)
        with self._call(creates=True, zone=zone, replaced={**described, "ttl": ttl}) as app:
            wanted = None if spec is None else limit.applied(_complete(app, spec, described), app.clock.now())
            preflight = preflight_check(app, {})
            policy = repair_policy(
                app,
                {},
                goal=goal,
                yes=yes,
                refuses_failed_startup=not allow_failed_startup,
                replace=replace,
                replace_request=replace,
                **queue_policy(app, wanted, timeout=timeout, is_awaited=True),
            )
            request = UpRequest(
                spec=wanted,
                policy=policy,
                preflight=preflight,
                setup=spec.setup if spec is not None else None,
                goal=goal,
                tiers=tried,
                limit=limit,
                idle=idle_change(app, None),
                yes=yes,
            )
            (result,) = bring_up(app, [_node_text(node)], request, lambda: nullcontext(self._listener(app, on_event)))
            found = _node_of(result)
            if found is None:
                raise AssertionError("`up` ends with a node or an error")
            refresh_ssh_entries(app, [found])
            return found

    def down(
        self,
        node: str | NodeName,
        *,
        timeout: Timeout = None,
        wait: bool = True,
        all_nodes: bool = False,
        yes: bool = False,
        on_event: Callable[[NodeEvent], None] | None = None,
    ) -> bool:
        """Delete a node, its boot disk and the queued resource that owns it, and wait until they are gone.

        Return True if it was deleted, False if every zone answered that there is none. With `wait=False` return once the
        deletion is requested. A queued resource with other nodes is deleted only with `all_nodes`.

        Raises `ConflictError` if a job, a TPU process, an ssh session or another run of tpuctl uses the node, if another
        user created or requested it (also if its creator is unknown), or if it has the label `tpuctl-keep`, unless `yes`; also
        if the name is ambiguous, or exists only in another zone. Raises `ServiceUnavailableError` if a zone that may have it
        did not answer, and other `TpuctlError`.
        """
        _check_timeout(timeout, may_be_endless=True)
        with self._call() as app:
            limit, listener = deadline(app, timeout), self._listener(app, on_event)
            with within_deadline(app, limit if wait else None):
                reference = app.reference(_node_text(node), allow_queued=True)
                targets, missing = find_named(app, app.services.context(listener), [reference])
            for target in targets:
                check_whole_request(target, all_nodes=all_nodes)

            def approve(asked: Sequence[ResourceGroup]) -> None:
                if not yes:
                    require_undisputed(app, asked)

            deletion = delete_groups(
                app,
                targets,
                missing,
                approve=approve,
                listen=lambda: nullcontext(listener),
                by="down",
                timeout=limit,
                wait=wait,
                all_nodes=all_nodes,
            )
            for _, result in deletion.results:
                if isinstance(result, TpuctlError):
                    raise result
            note_missing(app, deletion.missing, by="down")
            return bool(deletion.results)

    def list(self, *, zones: str | Sequence[str] = (), timeout: timedelta | None = None) -> list[Node]:
        """Return the nodes of all zones of the project, or of these `zones`, by zone and name.

        `timeout` is by default a minute. Raises `IncompleteListError` if a zone did not answer; its `nodes` are those of the
        other zones.
        """
        _check_timeout(timeout)
        with self._call() as app:
            # The zone of the client hides no node.
            app.set_options({"zone": _zones(zones) or (ANY_ZONE,)})
            with within_deadline(app, timeout):
                listing = app.services.client.list_nodes(app.project, app.zones)
            nodes = sorted(listing.nodes, key=by_zone_and_name)
            if listing.unreachable:
                raise IncompleteListError(listing.unreachable, nodes)
            return nodes

    def wait(
        self,
        node: str | NodeName,
        condition: Condition | str | None = None,
        *,
        timeout: Timeout = None,
        allow_failed_startup: bool = False,
        on_event: Callable[[NodeEvent], None] | None = None,
    ) -> Node | None:
        """Wait for a condition of a node and return it, None if it is gone. Changes nothing.

        A node that is requested and does not exist yet is waited for with its queued resource.

        The condition is by default `ssh`, or `healthy` where workers cannot be reached. Raises `NotFoundError`,
        `TimedOutError`, `FailedStartupError` unless `allow_failed_startup`, and what makes the condition impossible.
        """
        _check_timeout(timeout, may_be_endless=True)
        goal = _condition(condition, tuple(Condition))

        with self._call() as app:

            def find_targets(wanted: Condition) -> Sequence[WaitTarget]:
                return locate_for_wait(app, [_node_text(node)], goal=wanted)

            tasks = plan_wait(
                app,
                find_targets,
                goal=goal,
                probe=None,
                timeout=timeout,
                allow_failed_startup=allow_failed_startup,
            )
            with app.in_flight("nothing was changed", resume=""):
                results = reconcile_nodes(app.services.context(self._listener(app, on_event)), tasks)
            return _node_of(results[0]) if results else None

    def run(
        self,
        node: str | NodeName,
        command: str | Sequence[str],
        *,
        workers: str | int = "all",
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        sync: Path | str | None = None,
        timeout: timedelta | None = None,
        fail_fast: bool = False,
        detach: bool = False,
        name: str | None = None,
        on_output: Callable[[OutputPiece], None] | None = None,
    ) -> CommandResult:
        """Run a command on the workers of a node, at most once on each, and return its results.

        A text is a line for the workers' shell; a sequence is an argument vector. The command starts on all `workers` (`"all"`,
        `0`, `"1,3-5"`) or, if one cannot be reached, on none. After `timeout` it is terminated, by default never; with
        `fail_fast` also when it fails on one worker. It reads no stdin. `on_output` gets each piece of output, in this thread.
        With `detach` the command is a job that goes on without this program: the result has its `job`, and `logs` its output.
        `name` is the name of the job, by default one of the time.

        `sync` is a local folder to sync to the workers first, as `tpuctl sync --delete` does; the command runs in it unless
        `workdir` is given. Without `sync` nothing is sent, also in a git tree.

        A failure of the command is no exception: see `CommandResult.check`. Raises `NotFoundError`, `ConflictError` for a node
        without ssh, `InvalidInputError`, and other `TpuctlError`.
        """
        _check_timeout(timeout)
        if not isinstance(command, str) and not TEXTS.accepts(command):
            raise InvalidInputError(
                f"the command {command!r} is neither a text nor a sequence of texts", hint='give one: `["echo", "1"]`'
            )
        if name is not None:
            check_job_name(name)
        line = command if isinstance(command, str) else shell_line(command)
        if not line.strip():
            raise InvalidInputError("the command is empty", hint='name one: `client.run(node, "hostname")`')
        request = RunRequest(
            line=line,
            environment=EnvironmentOptions(
                dict(parse_variable(f"{name}={value}", {}) for name, value in (env or {}).items())
            ),
            folder=workdir,
            job=name,
            detach=detach,
            takes_stdin=False,
            passes_signals=False,
            fail_fast=fail_fast,
            timeout=timeout,
        )
        with self._call() as app:
            targets = find_targets(app, [find_node(app, _node_text(node))], WorkerSet.parse(str(workers)))
            await_key(app, targets)
            if sync is not None:
                tree = RunTree(Path(sync).absolute(), is_approved=True)
                targets, request, _ = sync_before_run(app, targets, tree, request)
            ends = f"is terminated after {format_duration(request.linger)} without a client"
            with app.in_flight(f"the command on `{node}` {'goes on' if detach else ends}", resume=""):
                result = run_captured(app, targets, request, on_output=on_output)
            if result.error is not None:
                _escape(result.error)
            return result

    def jobs(
        self, node: str | NodeName | None = None, *, workers: str | int = "all", limit: int = 100
    ) -> Sequence[JobInfo]:
        """Return the newest jobs of a node, or of all READY nodes of all zones, the newest first.

        Of all nodes, those that cannot be asked within 10 s are logged, and no ssh key is registered for it. Raises
        `NotFoundError` for a node that does not exist, `RemoteCommandError` if a worker of the one node does not answer,
        `IncompleteListError` if a zone does not answer, and other `TpuctlError`.
        """
        numbers = WorkerSet.parse(str(workers))
        with self._call() as app:
            if node is not None:
                scope = _scope(app, node, numbers)
                listing = list_jobs(scope, limit=limit)
                if listing.errors:
                    raise listing.errors[0]
                return list(map(JobInfo.of, listing.jobs))
            app.set_options({"zone": (ANY_ZONE,)})
            found = list_all_jobs(app, numbers, limit=limit)
            for name, why in found.silent.items():
                app.terminal.note(f"{name}: its jobs are unknown: {why}")
            if found.unreachable:
                raise IncompleteListError(found.unreachable)
            return list(map(JobInfo.of, found.listing.jobs))

    def logs(
        self,
        node: str | NodeName,
        job: str | None = None,
        *,
        workers: str | int = "all",
        tail: int | None = None,
        since: timedelta | None = None,
        follow: bool = False,
        on_output: Callable[[OutputPiece], None] | None = None,
    ) -> CommandResult:
        """Return the output of a job so far, by default of the newest job; with `follow` wait until it has ended.

        `tail` is the number of last lines of each worker, `since` the age of the oldest line, to about 3 s. `on_output` gets
        each piece of output, in this thread. On a worker where the job runs the outcome is `WorkerOutcome.DETACHED`, and
        `exit_code` is None. Ending the call never ends the job.

        Raises `NotFoundError` for a job or a node that does not exist, `RemoteCommandError` if a worker cannot be read.
        """
        _check_timeout(since)
        if job is not None:
            check_job_name(job)
        with self._call() as app:
            scope = replace(_scope(app, node, WorkerSet.parse(str(workers))), job=job)
            result = read_captured(app, scope, tail=tail, since=since, follow=follow, on_output=on_output)
            if result.error is not None:
                _escape(result.error)
            return result

    def sync(
        self,
        node: str | NodeName,
        source: Path | str = ".",
        *,
        to: str | None = None,
        workers: str | int = "all",
        delete: bool = False,
    ) -> Sequence[WorkerFiles]:
        """Sync the files of a folder, or what git has of a tree, to every worker, and return what was sent.

        Only differences are sent. `to` is the folder on the workers, by default one of the name of `source`; `delete` deletes
        there what is gone here. Raises `InvalidInputError` if there is no such folder, and the error of a worker that failed.
        """
        folder = Path(source)
        if not folder.is_dir():
            raise InvalidInputError(f"no such folder: `{folder}`", hint="name one with `source`")
        request = SyncRequest(folder=to or default_worker_folder(folder.absolute()), delete=delete)
        with self._call() as app:
            targets = _scope(app, node, WorkerSet.parse(str(workers))).targets
            tree = read_tree(folder.absolute(), app.invocation.environ)
            with app.in_flight(f"some workers of `{node}` do not have all files yet", resume=""):
                result = sync_workers(
                    targets, tree, request, clock=SystemClock(), ssh_options=shared_connection_options(app)
                )
            for note in tree.notes:
                app.terminal.note(note)
            if result.failed:
                raise explain_agent_errors(error for _, error in result.failed)[0]
            if result.unreadable:
                name, why = next(iter(result.unreadable.items()))
                raise RemoteCommandError(f"{len(result.unreadable)} files were not sent; `{name}`: {why}")
            return [WorkerFiles.of_sync(target, changes) for target, changes in result.succeeded]

    def copy(
        self,
        source: Path | str | Sequence[Path | str],
        destination: Path | str,
        *,
        workers: str | int = "all",
        recurse: bool = False,
    ) -> Sequence[WorkerFiles]:
        """Copy files to or from all workers of a node, and return what was copied for each.

        As for `tpuctl scp`, a path on a node is `NODE:PATH`, of either side; with `recurse` also folders. Files of several
        workers get a folder for each worker. Raises `InvalidInputError`, and the error of a worker that failed.
        """
        sources = [source] if isinstance(source, str | Path) else source
        request = parse_copy_request((*map(str, sources), str(destination)), has_labels=False)
        options, here = CopyOptions(recurse=recurse), Path.cwd()
        numbers, clock = WorkerSet.parse(str(workers)), SystemClock()
        listing = list_local_files(request.sources, here, recurse=recurse) if request.is_upload else None
        with self._call() as app:
            targets = find_targets(app, [find_node(app, name) for name in request.nodes], numbers)
            await_key(app, targets)
            with app.in_flight("some workers do not have all files yet", resume=""):
                if listing is not None:
                    copied = upload(targets, listing, request.destination, options=options, clock=clock)
                else:
                    copied = download(targets, request.sources, here, request.destination, options=options, clock=clock)
            if failed := [one.error for one in copied if one.error is not None]:
                raise explain_agent_errors(failed)[0]
            return list(map(WorkerFiles.of_copy, copied))

    def _listener(self, app: App, on_event: Callable[[NodeEvent], None] | None) -> Callable[[NodeEvent], None]:
        """Return what logs events, shows them if a person reads stderr, and passes them on."""
        changes = ChangeLines(app.clock) if self._shows_progress and sys.stderr is not None else None
        shown = Terminal(StandardStreams(io.StringIO(), io.StringIO(), sys.stderr), app.invocation.environ)

        def listen(event: NodeEvent) -> None:
            log_event(event)
            for line in changes.lines(event) if changes is not None else ():
                shown.note(line)
            if on_event is not None:
                on_event(event)

        return listen

    @contextmanager
    def _call(
        self,
        *,
        creates: bool = False,
        zone: str | Sequence[str] | None = None,
        replaced: Mapping[str, object] = MappingProxyType({}),
    ) -> Iterator[App]:
        """Yield the app of one call, which may create a node in one of several zones.

        The settings that the arguments of the call have `replaced` need no trust. An exception that is no error of ours gets a
        note about what is still in progress.
        """
        if self._is_closed:
            raise RuntimeError("the client is closed")
        app = self._app.for_call()
        if zone:
            app.set_options({"zone": _zones(zone)})
        elif not creates and len(app.zone_flags) > 1:
            app.choose_zone(None)  # a node that exists is in one of several zones
        app.note_overrides(replaced)
        try:
            app.require_trust()
            yield app
        except TpuctlError as error:
            app.name_node(error)
            _escape(error)
            raise
        except BaseException as error:
            if app.unfinished:
                error.add_note(escape_unprintable(app.unfinished))
            raise
        finally:
            app.close()


def _escape(error: TpuctlError) -> None:
    """Make control characters in the texts of an error visible, as the commands do: a traceback prints the texts."""
    error.lines = tuple(map(escape_unprintable, error.lines))
    error.message = "\n".join(error.lines)
    error.args = (error.message,)
    if error.hint:
        error.hint = "\n".join(map(escape_unprintable, error.hint.split("\n")))


def _has_reader() -> bool:
    """Return whether a person reads stderr: on a terminal, or in a notebook. Does not import IPython."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # The shell of a notebook has a kernel.
    return getattr(shell, "kernel", None) is not None


def _scope(app: App, node: str | NodeName, workers: WorkerSet) -> JobScope:
    """Return the workers of a node, on which our key is authorized."""
    targets = find_targets(app, [find_node(app, _node_text(node))], workers)
    await_key(app, targets)
    return JobScope(targets, shared_connection_options(app), str(node))


def _node_of(result: NodeResult | TpuctlError) -> Node | None:
    """Return the node of a result. Raises its error."""
    if isinstance(result, TpuctlError):
        raise result
    return result.node


def _node_text(node: object) -> str:
    """Return a node as commands name it. Raises `InvalidInputError`."""
    if isinstance(node, str | NodeName):
        return str(node)
    raise InvalidInputError(f"`{node!r}` does not name a node", hint="give a text such as `NODE` or `ZONE/NODE`")


def _zones(zones: object) -> tuple[str, ...]:
    """Return zones as flags. Raises `InvalidInputError` unless they are a text, or texts."""
    if not zones:
        return ()
    if isinstance(zones, str):
        return (zones,)
    if isinstance(zones, Sequence) and TEXTS.accepts(zones):
        return tuple(zones)
    raise InvalidInputError(
        f"`{zones!r}` does not name zones", hint='give a text such as `"us-central2-b"`, or several'
    )


def _as_settings(spec: NodeSpec | None, tiers: Sequence[Tier]) -> dict[str, str | tuple[str, ...]]:
    """Return what a spec sets of the settings, in their form. Raises `InvalidInputError` for fields that are not the user's."""
    if spec is None:
        return {}
    for name, row in FIELDS.items():
        value = getattr(spec, name)
        if value is not None and name != "tier" and not row.kind.accepts(value):
            raise InvalidInputError(
                f"`{name}={value!r}` of a `NodeSpec` is not {row.kind.words}", hint=f"give {row.kind.words}"
            )
    for name in ("expires", "ttl", "kept", "named", "flagged", "asked"):
        if getattr(spec, name):
            raise InvalidInputError(f"`{name}` of a `NodeSpec` cannot be given", hint="leave it out; `up` has `ttl`")
    given: dict[str, str | tuple[str, ...]] = {}
    for name, row in FIELDS.items():
        value = getattr(spec, name) if name != "tier" else tiers[0] if tiers else None
        if not row.follows_setting or value in (None, "", ()) or (name == "queue" and not value):
            continue
        is_several = isinstance(value, Sequence) and not isinstance(value, str)
        text = str(value).lower() if row.kind is SWITCH else str(value)
        given[setting_key(name)] = tuple(map(str, value)) if is_several else text
    return given


def _complete(app: App, spec: NodeSpec, described: Mapping[str, str | tuple[str, ...]]) -> NodeSpec:
    """Return the spec with the settings. Raises `InvalidInputError` if neither names an accelerator type."""
    settings = app.settings_with({**described})
    if settings.text("type") is None:
        raise InvalidInputError("no accelerator type given", hint='name one: `NodeSpec(accelerator_type="v4-8")`')
    return complete_spec(app, settings, spec)


def _condition(text: Condition | str | None, allowed: Sequence[Condition]) -> str | None:
    if text is None or text in allowed:
        return None if text is None else str(text)
    raise InvalidInputError(f"`{text}` is not a condition to wait for", hint=f"choose from {', '.join(allowed)}")


def _tier(text: Tier | str) -> Tier:
    try:
        return Tier(text)
    except ValueError:
        raise InvalidInputError(f"`{text}` is not a capacity type", hint=f"choose from {', '.join(Tier)}") from None


def _tiers(spec: NodeSpec | None, tiers: Sequence[Tier | str]) -> tuple[Tier, ...]:
    """Return the capacity types in the order in which to try them; none for that of the settings.

    Raises `InvalidInputError` if they are not valid, or not those of the spec.
    """
    if isinstance(tiers, str):
        raise InvalidInputError(f"`tiers={tiers!r}` is not a sequence", hint=f"write `tiers=({tiers!r},)`")
    if spec is None and tiers:
        raise InvalidInputError("`tiers` needs a `NodeSpec`", hint="pass `NodeSpec()` for that of the settings")
    own = _tier(spec.tier) if spec and spec.tier else None
    tried = tuple(_tier(tier) for tier in tiers) or ((own,) if own else ())
    if own and own not in tried:
        named = ", ".join(tried)
        raise InvalidInputError(
            f"the tier {own} of the `NodeSpec` is not one of `tiers` ({named})", hint="leave one of them out"
        )
    return tried


def _check_timeout(timeout: object, *, may_be_endless: bool = False) -> None:
    """Raise `InvalidInputError` unless a time limit is None, a duration above 0, or, if it `may_be_endless`, `"forever"`."""
    if timeout is None or (may_be_endless and timeout == "forever"):
        return
    if not (isinstance(timeout, timedelta) and timedelta() < timeout <= LONGEST_DURATION):
        longest = f"give a `timedelta` above 0 and up to {LONGEST_DURATION.days} days"
        raise InvalidInputError(
            f"`timeout={timeout!r}` is not a time", hint=f'{longest}, or `"forever"`' if may_be_endless else longest
        )


def _time_limit(ttl: timedelta | None) -> TimeLimit:
    """Return the limit of a node's time. Raises `InvalidInputError` unless it is a duration from minutes to a year."""
    if ttl is not None:
        if not isinstance(ttl, timedelta):
            raise InvalidInputError(f"`ttl={ttl!r}` is not a time", hint="give a `timedelta`")
        check_time_left(f"ttl={ttl!r}", ttl)
    return TimeLimit(until=ttl)


def _as_flags(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return settings as the command line has them. Raises `SettingError` for a key or a value that is invalid."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            near = closest_match(key, SETTINGS)
            raise SettingError(
                f"`{key}` is not a setting",
                hint=f"did you mean `{near}`?" if near else "`tpuctl config show` lists all",
            )
        match value:
            case bool():
                found[key] = str(value).lower()
            case timedelta():
                found[key] = f"{value.total_seconds()}s"
            case str() | int() | float() | Path():
                found[key] = str(value)
            case Mapping():
                found[key] = dict(value)
            case _ if TEXTS.accepts(value):
                found[key] = tuple(value)
            case _:
                raise SettingError(f"`{key}` cannot be {value!r}", hint=f"leave `{key}` out, or give a text")
        try:
            check_value_form(SETTINGS[key], found[key])
            parse_setting(SETTINGS[key], found[key])
        except ValueError as error:
            raise invalid_value_error(SETTINGS[key], found[key], "`settings`", str(error)) from None
    return found
