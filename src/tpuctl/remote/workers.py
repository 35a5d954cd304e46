"""The workers of nodes, by ssh: who answers, what they tell from inside, a reboot, a set-up. All workers are asked at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpuctl.errors import RemoteCommandError
from tpuctl.readiness import Answer, WorkerSeen
from tpuctl.remote import inspection, set_up
from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.keys import ensure_key, metadata_entry
from tpuctl.remote.known_hosts import remember_host_keys
from tpuctl.remote.reach import Reach, Way, network_named
from tpuctl.remote.session import SSH_FAILED, run, run_long
from tpuctl.remote.set_up import SetUpResult
from tpuctl.remote.ssh import Connection, ProbeOutcome, classify, host_alias, probe

if TYPE_CHECKING:
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.remote.keys import SshKey

# Handshakes under way at once: enough for a slice, few enough for one machine.
_AT_ONCE = 32
_T = TypeVar("_T")

_ANSWERS = {
    ProbeOutcome.ANSWERED: Answer.YES,
    ProbeOutcome.COMMAND_FAILED: Answer.YES,
    ProbeOutcome.KEY_REFUSED: Answer.KEY_REFUSED,
    ProbeOutcome.HOST_KEY_CHANGED: Answer.HOST_KEY_CHANGED,
    ProbeOutcome.UNREACHABLE: Answer.UNREACHABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSettings:
    """How to log in: as whom, with which key, what is known of host keys, and by which way.

    `key` is the private key that the user named, nothing for gcloud's under `home`. `guest_attributes` asks the API for
    what the workers publish; `proxy_command` gives ssh's ProxyCommand for one worker, nothing for a direct connection or a
    tunnel; `obstacle` says what else than an ssh client is missing on this machine; `reach` chooses among a worker's addresses.
    `os_login` lets OS Login know our key and gives the login name there, nothing where metadata decides; `needs_entry` tells
    whether a line of `ssh-keys` has to be put on a node; `expires` is until when our key counts, nothing for ever.
    """

    login: str
    home: Path
    key: Path | None
    known_hosts: Path
    guest_attributes: Callable[[NodeName, int | None], tuple[Mapping[str, str], ...]]
    proxy_command: Callable[[Node, int], str | None]
    obstacle: Callable[[], str | None] = lambda: None
    timeout: timedelta = timedelta(seconds=15)
    reach: Reach = field(default_factory=Reach)
    os_login: Callable[[Node, SshKey], str | None] = lambda node, key: None  # noqa: ARG005  # nobody uses OS Login
    needs_entry: Callable[[Node, str], bool] = lambda node, entry: True  # noqa: ARG005  # nothing is known
    expires: Callable[[], datetime | None] = lambda: None


class SshWorkers:
    """Workers reached by OpenSSH's client."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._key: SshKey | None = None
        self._host_keys: dict[str, tuple[str, ...]] = {}
        self._host_names: dict[str, str] = {}
        self._admitted: set[str] = set()

    def can_be_asked(self, node: Node | None = None) -> bool:
        """Return whether ssh can be used from here, to reach a node where one is named."""
        return self.obstacle(node) is None

    def obstacle(self, node: Node | None = None) -> str | None:
        """Return why ssh cannot be used from here, or None if it can; of a node, whether it has an address to go to."""
        if shutil.which("ssh") is None:
            return "there is no `ssh` on this machine"
        return self._settings.obstacle() or self._settings.reach.obstacle(node)

    def obstacle_of_new(self, name: NodeName, spec: NodeSpec) -> str | None:
        """Return why the workers of a node that is to be made cannot be reached from here, or None if they can."""
        network = network_named(spec.network or "", name.project)
        return self._settings.reach.obstacle_in(network, name.project, has_external=not spec.internal_ips)

    def note_admission(self, node: Node) -> None:
        """Remember that our key was put on a node a moment ago: its workers may refuse it for some time yet."""
        self._admitted.add(node.id)

    def was_admitted_now(self, node: Node) -> bool:
        """Return whether this run put our key on a node."""
        return node.id in self._admitted

    def key(self) -> SshKey:
        """Return the key to log in with, made if it is gcloud's and missing."""
        if self._key is None:
            self._key = ensure_key(self._settings.home, key=self._settings.key, login=self._settings.login)
        return self._key

    def key_entry(self, node: Node | None = None) -> str | None:
        """Return the line of `ssh-keys` metadata that lets us in; None if there is no ssh, or a node lets us in without.

        Where a node uses OS Login our key is imported there. Raises what that raises.
        """
        if not self.can_be_asked():
            return None
        entry = metadata_entry(self._settings.login, self.key(), expires=self._settings.expires())
        if node is not None and (self._os_login(node) is not None or not self._settings.needs_entry(node, entry)):
            return None
        return entry

    def _os_login(self, node: Node) -> str | None:
        return self._settings.os_login(node, self.key())

    def check_way(self, node: Node, worker: int) -> None:
        """Return where a worker has an address for the way that was chosen; raise `NoWayError` where it has none."""
        self._settings.reach.way_to(node, worker)

    def connection(self, node: Node, worker: int, *, makes_key: bool = True) -> Connection:
        """Return how to reach one worker. Without `makes_key` the key is only named, whether it is there or not.

        Raises `NoWayError` if it has no address for the way that was chosen, and what `Reach.tunnel` raises.
        """
        alias = host_alias(node.id or node.name.node_id, worker)
        reach = self._settings.reach
        way = reach.way_to(node, worker)
        tunnel = None
        if way is Way.IAP:
            if alias not in self._host_names:
                self.learn_host_keys(node)
            tunnel = reach.tunnel(node, worker, self._host_names.get(alias))
        endpoint, folder = node.endpoints[worker], self._settings.home / ".ssh"
        return Connection(
            login=(self._os_login(node) if makes_key else None) or self._settings.login,
            address=(endpoint.external if way is Way.EXTERNAL else endpoint.internal) or endpoint.address or "",
            host_alias=alias,
            known_hosts=(self._settings.known_hosts, folder / "google_compute_known_hosts"),
            identity=self.key().path if makes_key else self._settings.key or folder / "google_compute_engine",
            proxy_command=self._settings.proxy_command(node, worker) or tunnel,
            host_keys=self._host_keys.get(alias, ()),
        )

    def connections(self, node: Node) -> list[Connection]:
        """Return how to reach each worker, with the host keys that the API vouches for written down."""
        self.learn_host_keys(node)
        found = [self.connection(node, worker) for worker in range(len(node.endpoints))]
        remember_host_keys(found)
        return found

    def survey(self, node: Node, *, inspect: bool, probe: str | None, timeout: timedelta) -> tuple[WorkerSeen, ...]:
        """Return what each worker shows of itself; each is given `timeout`, and at most 32 are asked at a time.

        Without `inspect` that is whether it answers ssh. With it, one session with each tells of its startup, its chips and
        who holds them; `probe` is a shell line of the user's that is run there too, with TPUCTL_WORKER and TPUCTL_NODE set, and
        that must end with 0.
        """
        if not inspect:
            return self._everywhere(node, lambda way, _: _knock(way, timeout))
        text = inspection.script(probe, timeout)

        def inspect_one(way: Connection, worker: int) -> WorkerSeen:
            names = f"export TPUCTL_WORKER={worker} TPUCTL_NODE={node.name.node_id}\n"
            return _inspect(way, names + text, probe=probe, timeout=timeout)

        return self._everywhere(node, inspect_one)

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside.

        Raises `RemoteCommandError` naming the workers that do not answer, before any is rebooted, or that refused.
        """
        limit = self._settings.timeout
        seen = self.survey(node, inspect=False, probe=None, timeout=limit)
        silent = [str(worker) for worker, one in enumerate(seen) if one.answer is not Answer.YES]
        if silent:
            raise _not_rebooted(node, silent, "they do not answer ssh" if len(silent) > 1 else "it does not answer ssh")
        codes = self._everywhere(node, lambda way, _: run_long(way, "sudo reboot", text="", timeout=limit).code)
        # 255, or no end at all: the link went down with the machine, which is what was asked for.
        refused = [str(worker) for worker, code in enumerate(codes) if code not in {0, SSH_FAILED, None}]
        if refused:
            raise _not_rebooted(node, refused, "`sudo reboot` was refused; the other workers reboot")

    def set_up(self, node: Node, script: str, *, timeout: timedelta) -> tuple[SetUpResult, ...]:
        """Run shell lines once on every worker, with TPUCTL_WORKER and TPUCTL_NODE set, and return how each ended.

        Each worker is given `timeout`. Only a session that ends before the first line has begun is tried again.
        """
        name = node.name.node_id
        return self._everywhere(
            node, lambda way, worker: set_up.run_on(way, script, worker=worker, node=name, timeout=timeout)
        )

    def _everywhere(self, node: Node, act: Callable[[Connection, int], _T]) -> tuple[_T, ...]:
        """Return what an act gives on each worker, in their order."""
        ways = self.connections(node)
        with ThreadPoolExecutor(min(_AT_ONCE, len(ways)) or 1) as pool:
            return tuple(pool.map(act, ways, range(len(ways))))

    def learn_host_keys(self, node: Node) -> None:
        """Ask the API once for the host keys and instance names that the workers publish.

        A node that publishes no host keys is trusted at first use; its next connection asks again.
        """
        aliases = [host_alias(node.id or node.name.node_id, worker) for worker in range(len(node.endpoints))]
        if all(alias in self._host_keys for alias in aliases):
            return
        attributes = self._settings.guest_attributes(node.name, None)
        for alias, published in zip(aliases, attributes, strict=False):
            keys = tuple(
                f"{key.rpartition('/')[2]} {value}" for key, value in published.items() if key.startswith("hostkeys/")
            )
            if keys:
                self._host_keys[alias] = keys
            # gcloud looks for this key in any namespace [gcloud 528 source].
            if name := next((value for key, value in published.items() if key.rpartition("/")[2] == "hostname"), None):
                self._host_names[alias] = name


def _knock(way: Connection, timeout: timedelta) -> WorkerSeen:
    result = probe(way, timeout)
    return WorkerSeen(_ANSWERS[result.outcome], detail=result.detail)


def _inspect(way: Connection, text: str, *, probe: str | None, timeout: timedelta) -> WorkerSeen:
    """Return what a worker tells from inside. What was told counts even where the session did not end well."""
    try:
        ended = run(way, inspection.COMMAND, text=text, timeout=timeout)
    except UnexpectedAnswerError as error:
        return WorkerSeen(Answer.UNREACHABLE, detail=f"unexpected answer: {error.what}")
    report = inspection.parse(ended.output, probe=probe, timeout=timeout)
    if report is not None:
        return WorkerSeen(
            Answer.YES,
            startup=report.startup,
            chips=report.chips,
            failed=report.failed,
            holders=report.holders,
            detail=report.detail,
        )
    if ended.code is None:
        within = f"within {timeout.total_seconds():g} s"
        if inspection.has_begun(ended.output):
            return WorkerSeen(Answer.YES, detail=f"it answers ssh, but tells nothing of itself {within}")
        return WorkerSeen(Answer.UNREACHABLE, detail=f"no answer {within}")
    if ended.code == SSH_FAILED:
        result = classify(ended.code, ended.errors)
        return WorkerSeen(_ANSWERS[result.outcome], detail=result.detail)
    said = inspection.last_line(ended.output) or inspection.last_line(ended.errors)
    detail = "it answers ssh, but tells nothing of itself" + (f": {said}" if said else "")
    return WorkerSeen(Answer.YES, detail=detail)


def _not_rebooted(node: Node, workers: list[str], why: str) -> RemoteCommandError:
    name = node.name.node_id
    return RemoteCommandError(
        f"worker {', '.join(workers)} of `{name}` cannot be rebooted from inside: {why}",
        hint=f"try it by hand: `tpuctl ssh {name} --worker {workers[0]} -- sudo reboot`",
    )
