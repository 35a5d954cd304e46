"""The workers of nodes over ssh: probe, inspect, reboot and set up all workers in parallel."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpuctl.errors import RemoteCommandError
from tpuctl.fan_out import fan_out
from tpuctl.nodes.conditions import SshAnswer, WorkerSnapshot, find_misidentified
from tpuctl.nodes.inspection import (
    INSPECTION_COMMAND,
    inspection_has_begun,
    inspection_script,
    parse_inspection,
)
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.connection import (
    SSH_FAILED,
    Connection,
    ProbeOutcome,
    SshCommandResult,
    Target,
    classify_exit,
    host_alias,
    last_printed_line,
    probe_ssh,
    run_ssh_command,
    save_host_keys,
)
from tpuctl.ssh.keys import default_key_path, ensure_key, metadata_key_line
from tpuctl.ssh.routes import Route, Router, resolve_network

if TYPE_CHECKING:
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.key_authorization import KeyAuthorizer
    from tpuctl.ssh.keys import SshKey
    from tpuctl.ssh.tpu_guard import GuardReport

# Handshakes under way at once: enough for a slice, few enough for one machine.
_MAX_SESSIONS = 32
# A use this long before the last look may have been seen by it, or not: it counts.
_LOOK_TIME = timedelta(seconds=15)
_REBOOT_TIMEOUT = timedelta(seconds=15)
_T = TypeVar("_T")

_ANSWERS = {
    ProbeOutcome.ANSWERED: SshAnswer.YES,
    ProbeOutcome.COMMAND_FAILED: SshAnswer.YES,
    ProbeOutcome.KEY_REFUSED: SshAnswer.KEY_REFUSED,
    ProbeOutcome.HOST_KEY_CHANGED: SshAnswer.HOST_KEY_CHANGED,
    ProbeOutcome.UNREACHABLE: SshAnswer.UNREACHABLE,
}


@dataclass(eq=False, kw_only=True)
class SshWorkers:
    """Connects to workers with the OpenSSH client."""

    login: str
    home: Path
    # The private key that the user named; None for gcloud's key under `home`.
    key_file: Path | None
    known_hosts: Path
    # Fetches the guest attributes of the workers from the API.
    guest_attributes: Callable[[NodeName, int | None], tuple[Mapping[str, str], ...]]
    # Returns ssh's ProxyCommand for a worker; None for a direct connection or a tunnel.
    proxy_command: Callable[[Node, int], str | None]
    # Returns what is missing on this machine besides an ssh client, or None.
    missing: Callable[[], str | None] = lambda: None
    # Chooses among the addresses of a worker.
    router: Router = field(default_factory=Router)
    # Finds out whether a node has our key, and imports it into OS Login. None: every node needs it in its metadata.
    authorizer: KeyAuthorizer | None = None
    # No key is created, and none is added to a node or to OS Login.
    only_looks: bool = False
    _key: SshKey | None = field(default=None, init=False)
    _host_keys: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _host_names: dict[str, str] = field(default_factory=dict, init=False)
    _admitted: set[str] = field(default_factory=set, init=False)

    def obstacle(self, node: Node | None = None) -> str | None:
        """Return why this machine cannot use ssh or, if a node is given, has no route to it; else None."""
        if shutil.which("ssh") is None:
            return "there is no `ssh` on this machine"
        return self.missing() or self.router.obstacle(node)

    def obstacle_of_new(self, name: NodeName, spec: NodeSpec) -> str | None:
        """Return why this machine will have no route to the workers of a new node, or None."""
        network = resolve_network(spec.network or "", name.project)
        return self.router.obstacle_in(network, name.project, has_external=not spec.internal_ips)

    def note_admission(self, node: Node) -> None:
        """Remember that our key was just added to a node: its workers may still refuse it for some seconds."""
        self._admitted.add(node.id)

    def was_admitted_now(self, node: Node) -> bool:
        """Return whether this run added our key to a node."""
        return node.id in self._admitted

    def key(self) -> SshKey:
        """Return the key to log in with. Create gcloud's key if it is missing."""
        if self._key is None:
            self._key = ensure_key(self.home, key=self.key_file, login=self.login)
        return self._key

    @property
    def has_key(self) -> bool:
        """Whether there is a key to log in with, so that none has to be made."""
        return self._unmade_key.exists()

    @property
    def _unmade_key(self) -> Path:
        """The path of the key, which may not exist."""
        return self.key_file or default_key_path(self.home)

    def key_entry(self, node: Node | None = None) -> str | None:
        """Return our line for the `ssh-keys` metadata; None without ssh, or if the node already accepts our key.

        If the node uses OS Login, the key is imported there. Raises what that raises.
        """
        if self.only_looks or self.obstacle() is not None:
            return None
        authorizer = self.authorizer
        entry = metadata_key_line(self.login, self.key(), expires=authorizer.expires() if authorizer else None)
        if node is None or authorizer is None:
            return entry
        if self._os_login(node) is not None or not authorizer.needs_entry(node, entry):
            return None
        return entry

    def _os_login(self, node: Node) -> str | None:
        """Return the login name of OS Login, into which our key is imported; None if metadata decides."""
        if self.authorizer is None or (self.only_looks and not self.has_key):
            return None
        if self.only_looks:
            return self.authorizer.where_known(node, self.key(), self.login).login
        return self.authorizer.os_login(node, self.key())

    def check_route(self, node: Node, worker: int) -> None:
        """Raise `UnreachableError` if a worker has no address for the chosen route."""
        self.router.route_to(node, worker)

    def connection(self, node: Node, worker: int, *, makes_key: bool = True) -> Connection:
        """Return the connection to a worker. Without `makes_key` a missing key is not created.

        Raises `UnreachableError` if the worker has no address for the chosen route, and what `Router.tunnel` raises.
        """
        makes_key = makes_key and (self.has_key or not self.only_looks)
        alias = host_alias(node.id or node.name.node_id, worker)
        way = self.router.route_to(node, worker)
        tunnel = None
        if way is Route.IAP:
            if alias not in self._host_names:
                self.learn_host_keys(node)
            tunnel = self.router.tunnel(node, worker, self._host_names.get(alias))
        endpoint, folder = node.endpoints[worker], self.home / ".ssh"
        return Connection(
            login=(self._os_login(node) if makes_key else None) or self.login,
            address=(endpoint.external if way is Route.EXTERNAL else endpoint.internal) or endpoint.address or "",
            host_alias=alias,
            known_hosts=(self.known_hosts, folder / "google_compute_known_hosts"),
            identity=self.key().path if makes_key else self._unmade_key,
            proxy_command=self.proxy_command(node, worker) or tunnel,
            host_keys=self._host_keys.get(alias, ()),
        )

    def connections(self, node: Node) -> list[Connection]:
        """Return the connection to each worker. The host keys from the API are written to the known hosts."""
        self.learn_host_keys(node)
        found = [self.connection(node, worker) for worker in range(len(node.endpoints))]
        save_host_keys(found)
        return found

    def survey(self, node: Node, *, inspect: bool, probe: str | None, timeout: timedelta) -> tuple[WorkerSnapshot, ...]:
        """Probe each worker within `timeout`, up to 32 at a time.

        Without `inspect`, only whether it answers ssh. With it, one session also reports its startup, its chips and the
        processes that hold them; the user's shell line `probe` runs there too, with TPUCTL_WORKER and TPUCTL_NODE set, and
        must exit with 0.
        """
        if not inspect:

            def probe_one(connection: Connection, _worker: int) -> WorkerSnapshot:
                result = probe_ssh(connection, timeout)
                return WorkerSnapshot(_ANSWERS[result.outcome], detail=result.detail)

            return self._on_each_worker(node, probe_one)
        text = inspection_script(probe, timeout)

        def inspect_one(connection: Connection, worker: int) -> WorkerSnapshot:
            names = f"export TPUCTL_WORKER={worker} TPUCTL_NODE={node.name.node_id}\n"
            return _inspect_worker(connection, names + text, probe=probe, timeout=timeout)

        seen = self._on_each_worker(node, inspect_one)
        wrong = find_misidentified(node, {number: one.identity for number, one in enumerate(seen) if one.identity})
        return tuple(replace(one, misidentified=wrong.get(number, "")) for number, one in enumerate(seen))

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside.

        Raises `RemoteCommandError` naming the workers that do not answer, before any is rebooted, or that refused it.
        """
        limit = _REBOOT_TIMEOUT
        seen = self.survey(node, inspect=False, probe=None, timeout=limit)
        silent = [str(worker) for worker, one in enumerate(seen) if one.answer is not SshAnswer.YES]
        if silent:
            raise _reboot_error(node, silent, "they do not answer ssh" if len(silent) > 1 else "it does not answer ssh")
        codes = self._on_each_worker(
            node, lambda connection, _: run_ssh_command(connection, "sudo reboot", timeout=limit, is_long=True).code
        )
        # 255 or no exit code: the connection broke because the machine is rebooting, as requested.
        refused = [str(worker) for worker, code in enumerate(codes) if code not in {0, SSH_FAILED, None}]
        if refused:
            raise _reboot_error(node, refused, "`sudo reboot` was refused; the other workers reboot")

    def set_up(self, node: Node, script: str, *, timeout: timedelta) -> tuple[SetupResult, ...]:
        """Run shell lines once on every worker within `timeout`, with TPUCTL_WORKER and TPUCTL_NODE set.

        Only a session that ends before the first line is retried. The lines of an interrupted run that still run are waited
        for, and other lines are ended first.
        """
        return self._on_each_worker(
            node, lambda connection, worker: run_setup(connection, script, worker=worker, node=node, timeout=timeout)
        )

    def start_guard(self, node: Node, idle: tuple[timedelta, str] | None, *, keeps_idle: bool) -> GuardReport:
        """Start the guard on worker 0 and return its report. `idle`: how long the node may be idle, and what happens then.

        With `keeps_idle` it is the limit of an earlier guard. Raises `RemoteCommandError`.
        """
        from tpuctl.ssh.tpu_guard import start_guard  # noqa: PLC0415  # few nodes have a time limit

        return start_guard(self._first_worker(node), idle=idle, keeps_idle=keeps_idle)

    def remove_guard(self, node: Node) -> bool:
        """End and remove the guard on worker 0. Return whether there was one. Raises `RemoteCommandError`."""
        from tpuctl.ssh.tpu_guard import remove_guard  # noqa: PLC0415  # as above

        return remove_guard(self._first_worker(node))

    def _first_worker(self, node: Node) -> Target:
        return Target(node, 0, self.connections(node)[0], f"{node.name.node_id}-0")

    def find_activity(self, node: Node, *, since: timedelta | None, has_probe: bool) -> tuple[str, ...]:
        """Return what uses the workers of a node, or why they cannot be examined: empty only if all of them are idle.

        What a job used in the time `since` the last look counts too, and what another program did, unless `has_probe`: the
        user's probe leaves the same traces. Raises `UnreachableError` without a route to the workers, and what the API raises.
        """
        from tpuctl.nodes.usage import fetch_idleness  # noqa: PLC0415  # few nodes have a limit for idleness

        def ask(connection: Connection, worker: int) -> tuple[str, ...]:
            try:
                target = Target(node, worker, connection, f"{node.name.node_id}-{worker}")
                report = fetch_idleness(target, has_programs=not has_probe, has_logins=False)
            except RemoteCommandError as error:
                return (f"worker {worker} cannot be examined: {error.message}",)
            between = (report.last,) if since is not None and report.lasted <= since + _LOOK_TIME else ()
            return tuple(f"worker {worker}: {what}" for what in (*report.in_use, *report.unknown, *between))

        found = [what for each in self._on_each_worker(node, ask) for what in each]
        if len(node.endpoints) != node.workers:
            found.append(f"{len(node.endpoints)} of {node.workers} workers have an address")
        return tuple(found)

    def _on_each_worker(self, node: Node, act: Callable[[Connection, int], _T]) -> tuple[_T, ...]:
        """Call a function for each worker in parallel, and return the results in order."""
        workers = list(enumerate(self.connections(node)))
        outcomes = fan_out(lambda one: act(one[1], one[0]), workers, limit=_MAX_SESSIONS)
        return tuple(outcome.get() for outcome in outcomes)

    def learn_host_keys(self, node: Node) -> None:
        """Fetch the host keys and instance names of the workers from the API, once.

        A node without published host keys is trusted at first use; its next connection fetches them again.
        """
        aliases = [host_alias(node.id or node.name.node_id, worker) for worker in range(len(node.endpoints))]
        if all(alias in self._host_keys for alias in aliases):
            return
        attributes = self.guest_attributes(node.name, None)
        for alias, published in zip(aliases, attributes, strict=False):
            keys = tuple(
                f"{key.rpartition('/')[2]} {value}" for key, value in published.items() if key.startswith("hostkeys/")
            )
            if keys:
                self._host_keys[alias] = keys
            # gcloud reads this key in any namespace [gcloud 528 source].
            if name := next((value for key, value in published.items() if key.rpartition("/")[2] == "hostname"), None):
                self._host_names[alias] = name


def _inspect_worker(connection: Connection, text: str, *, probe: str | None, timeout: timedelta) -> WorkerSnapshot:
    """Inspect a worker over ssh. Its report counts even if the session fails later."""
    try:
        ended = run_ssh_command(connection, INSPECTION_COMMAND, text=text, timeout=timeout)
    except UnexpectedAnswerError as error:
        return WorkerSnapshot(SshAnswer.UNREACHABLE, detail=f"unexpected answer: {error.what}")
    report = parse_inspection(ended.output, probe=probe, timeout=timeout)
    if report is not None:
        return WorkerSnapshot(SshAnswer.YES, **asdict(report))
    if ended.code is None:
        within = f"within {timeout.total_seconds():g} s"
        if inspection_has_begun(ended.output):
            return WorkerSnapshot(SshAnswer.YES, detail=f"it answers ssh, but the inspection sent no report {within}")
        return WorkerSnapshot(SshAnswer.UNREACHABLE, detail=f"no answer {within}")
    if ended.code == SSH_FAILED:
        result = classify_exit(ended.code, ended.errors)
        return WorkerSnapshot(_ANSWERS[result.outcome], detail=result.detail)
    last_line = last_printed_line(ended.output) or last_printed_line(ended.errors)
    detail = "it answers ssh, but the inspection sent no report" + (f": {last_line}" if last_line else "")
    return WorkerSnapshot(SshAnswer.YES, detail=detail)


def _reboot_error(node: Node, workers: list[str], why: str) -> RemoteCommandError:
    name = node.name.node_id
    return RemoteCommandError(
        f"worker {', '.join(workers)} of `{name}` cannot be rebooted from inside: {why}",
        hint=f"try it manually with `tpuctl ssh {name} --worker {workers[0]} -- sudo reboot`",
    )


_BEGUN = "tpuctl-set-up-begins"
_END = "# tpuctl-set-up-ends"
_TRIES = 4
_TIMED_OUT = 124
_TAIL_LINES = 20

# The script is read completely before its first line runs: a broken connection never runs a half of it, and no line can
# read the next from stdin. It continues without the connection: it has a session of its own, and its output goes to a file.
# The shell around it holds the lock, which a process that it leaves behind does not inherit. If the lock is held, an earlier
# run has left its set-up: the same script is waited for, and if it succeeded that is the result; another one is ended.
_LOADER = f"""\
text=$(cat)
case $text in *"{_END}") ;; *) exit 255 ;; esac
place=$HOME/.tpuctl/set-up/$1
shell=sh
command -v bash >/dev/null 2>&1 && shell=bash
(umask 077; mkdir -p "$place") || exit 255
exec 9>>"$place/lock"
if ! flock -n 9; then
  if [ "$text" = "$(cat "$place/script" 2>/dev/null)" ]; then
    flock 9
    if [ "$(cat "$place/code" 2>/dev/null)" = 0 ]; then
      echo; echo {_BEGUN}
      tail -n {_TAIL_LINES} "$place/output"
      exit 0
    fi
  else
    for signal in TERM KILL; do
      group=$(cat "$place/group")
      sudo -n kill -s $signal -- "-$group" || kill -s $signal -- "-$group"
      flock -w 10 9 && break
    done 2>/dev/null
    flock 9
  fi
fi
rm -f "$place/group" "$place/code"
printf '%s\\n' "$text" >"$place/script" || exit 255
echo; echo {_BEGUN}
setsid sh -c '
  echo $$ >"$1/group"
  "$2" "$1/script" 9>&-
  code=$?
  echo $code >"$1/code"
  rm -f "$1/group" "$1/script"
  exit $code
' sh "$place" "$shell" </dev/null >"$place/output" 2>&1
code=$?
tail -n {_TAIL_LINES} "$place/output"
exit $code
"""


@dataclass(frozen=True, slots=True)
class SetupResult:
    """The exit code of the set-up on one worker, and the last 20 lines of its output.

    Code 255 means that ssh failed, 124 that the set-up timed out. The reason is then the last line of `tail`.
    """

    worker: int
    code: int
    tail: str


def run_setup(connection: Connection, script: str, *, worker: int, node: Node, timeout: timedelta) -> SetupResult:
    """Run shell lines on one worker, with bash if it is installed, else with sh.

    A session that fails before the first line is retried up to three times; one that has begun is never retried.
    """
    text = f"{script}\n{_END}\n"
    for _ in range(_TRIES):
        ended = run_ssh_command(connection, setup_command(worker, node), text=text, timeout=timeout, is_long=True)
        if ended.code != SSH_FAILED or _has_begun(ended):
            break
        if classify_exit(SSH_FAILED, ended.errors).outcome is not ProbeOutcome.UNREACHABLE:
            break
    lines = ended.output.rpartition(f"{_BEGUN}\n")[2].splitlines()
    if ended.code is None:
        code, why = _TIMED_OUT, f"timed out after {timeout.total_seconds():g} s"
    elif not _has_begun(ended):
        # A login shell that exits at once ends with 0 and runs no line.
        code, why = (
            SSH_FAILED,
            classify_exit(SSH_FAILED, ended.errors).detail or "the session ended before the set-up began",
        )
    else:
        code, why = ended.code, classify_exit(ended.code, ended.errors).detail if ended.code == SSH_FAILED else ""
    return SetupResult(worker, code, "\n".join([*lines, *([why] if why else [])][-_TAIL_LINES:]))


def setup_command(worker: int, node: Node) -> str:
    """Return the command that reads the script from stdin and runs it."""
    environment = (f"TPUCTL_WORKER={worker}", f"TPUCTL_NODE={node.name.node_id}")
    # Workers may share a home.
    key = f"{node.id or node.name.node_id}-{worker}"
    return "exec " + shlex.join(["env", *environment, "sh", "-c", _LOADER, "sh", key])


def _has_begun(ended: SshCommandResult) -> bool:
    return f"{_BEGUN}\n" in ended.output
