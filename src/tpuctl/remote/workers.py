"""The workers of nodes, by ssh: who answers, and a reboot from inside. All workers are asked at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, RemoteCommandError
from tpuctl.readiness import Answer
from tpuctl.remote.keys import ensure_key, metadata_entry
from tpuctl.remote.known_hosts import remember_host_keys
from tpuctl.remote.ssh import Connection, ProbeOutcome, ProbeResult, host_alias, probe, run_quietly

if TYPE_CHECKING:
    from tpuctl.model import Node
    from tpuctl.names import NodeName
    from tpuctl.remote.keys import SshKey

# Handshakes under way at once: enough for a slice, few enough for one machine.
_AT_ONCE = 32

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
    what the workers publish; `proxy_command` gives ssh's ProxyCommand for one worker, nothing for a direct connection;
    `obstacle` says what else than an ssh client is missing on this machine.
    """

    login: str
    home: Path
    key: Path | None
    known_hosts: Path
    guest_attributes: Callable[[NodeName, int | None], tuple[Mapping[str, str], ...]]
    proxy_command: Callable[[Node, int], str | None]
    obstacle: Callable[[], str | None] = lambda: None
    timeout: timedelta = timedelta(seconds=15)


class SshWorkers:
    """Workers reached by OpenSSH's client."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._key: SshKey | None = None
        self._host_keys: dict[str, tuple[str, ...]] = {}

    def can_be_asked(self) -> bool:
        """Tell whether ssh can be used from here."""
        return self.obstacle() is None

    def obstacle(self) -> str | None:
        """Return why ssh cannot be used from here, or nothing where it can."""
        if shutil.which("ssh") is None:
            return "there is no `ssh` on this machine"
        return self._settings.obstacle()

    def key(self) -> SshKey:
        """Return the key to log in with, made if it is gcloud's and missing."""
        if self._key is None:
            self._key = ensure_key(self._settings.home, key=self._settings.key, login=self._settings.login)
        return self._key

    def key_entry(self) -> str | None:
        """Return the line of `ssh-keys` metadata that lets us in; nothing where there is no ssh."""
        return metadata_entry(self._settings.login, self.key()) if self.can_be_asked() else None

    def connection(self, node: Node, worker: int) -> Connection:
        """Return how to reach one worker. Raises `ConflictError` where it has no address."""
        alias = host_alias(node.id or node.name.node_id, worker)
        address = node.endpoints[worker].address if worker < len(node.endpoints) else None
        if address is None:
            hint = f"see `tpuctl status {node.name.node_id}`"
            raise ConflictError(f"worker {worker} of `{node.name.node_id}` has no address", hint=hint)
        return Connection(
            login=self._settings.login,
            address=address,
            host_alias=alias,
            known_hosts=(self._settings.known_hosts, self._settings.home / ".ssh" / "google_compute_known_hosts"),
            identity=self.key().path,
            proxy_command=self._settings.proxy_command(node, worker),
            host_keys=self._host_keys.get(alias, ()),
        )

    def connections(self, node: Node) -> list[Connection]:
        """Return how to reach each worker, with the host keys that the API vouches for written down."""
        self.learn_host_keys(node)
        found = [self.connection(node, worker) for worker in range(len(node.endpoints))]
        remember_host_keys(found)
        return found

    def ask(self, node: Node) -> tuple[Answer, ...]:
        """Return, for each worker, whether it answers ssh."""
        return tuple(_ANSWERS[result.outcome] for result in self.probe(node))

    def probe(self, node: Node) -> list[ProbeResult]:
        """Return what each worker did when ssh knocked."""
        ways = self.connections(node)
        with ThreadPoolExecutor(min(_AT_ONCE, len(ways)) or 1) as pool:
            return list(pool.map(lambda way: probe(way, self._settings.timeout), ways))

    def reboot(self, node: Node) -> None:
        """Reboot every worker from inside.

        Raises `RemoteCommandError` naming the workers that do not answer, before any is rebooted, or that refused.
        """
        silent = [str(worker) for worker, answer in enumerate(self.ask(node)) if answer is not Answer.YES]
        if silent:
            raise _not_rebooted(node, silent, "they do not answer ssh" if len(silent) > 1 else "it does not answer ssh")
        ways = self.connections(node)
        with ThreadPoolExecutor(min(_AT_ONCE, len(ways)) or 1) as pool:
            codes = list(pool.map(lambda way: run_quietly(way, ("sudo reboot",), self._settings.timeout), ways))
        # 255: the link went down with the machine, which is what was asked for.
        refused = [str(worker) for worker, code in enumerate(codes) if code not in {0, 255}]
        if refused:
            raise _not_rebooted(node, refused, "`sudo reboot` was refused; the other workers reboot")

    def learn_host_keys(self, node: Node) -> None:
        """Ask the API once for the host keys that the workers publish; a node that publishes none is trusted at first use."""
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


def _not_rebooted(node: Node, workers: list[str], why: str) -> RemoteCommandError:
    name = node.name.node_id
    return RemoteCommandError(
        f"worker {', '.join(workers)} of `{name}` cannot be rebooted from inside: {why}",
        hint=f"try it by hand: `tpuctl ssh {name} --worker {workers[0]} -- sudo reboot`",
    )
