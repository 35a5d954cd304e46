"""Authorize our ssh key, in the metadata of a node or its project or in OS Login, and wait until the workers accept it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.command_text import command_word
from tpuctl.errors import AccessError, NotFoundError, QuotaError, ServiceUnavailableError
from tpuctl.fan_out import fan_out
from tpuctl.nodes.poll import Notes, Wait, poll
from tpuctl.ssh.connection import ProbeOutcome, probe_ssh
from tpuctl.ssh.keys import (
    OS_LOGIN_CACHE_LIFETIME,
    OS_LOGIN_ENABLED,
    OsLoginError,
    check_os_login_requirements,
    find_key_expiry,
    has_metadata_key,
    is_switch_on,
    metadata_key_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.cloud.projects import ComputeClient, OsLoginClient
    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Target
    from tpuctl.ssh.keys import OsLoginCache, SshKey

_T = TypeVar("_T")
# A key of a profile that expires sooner is extended, because a command may connect again for a while.
_SHORTEST_VALIDITY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """Where our key is stored, the login name, and the expiry of the key."""

    # "node metadata", "project metadata", "OS Login" or None.
    keeper: str | None
    login: str | None
    expires: datetime | None


@dataclass(eq=False, kw_only=True)
class KeyAuthorizer:
    """Authorizes our key for nodes."""

    projects: Callable[[], ComputeClient]
    profiles: Callable[[], OsLoginClient]
    # Returns the identity of the calls, None if it is unknown.
    caller: Callable[[], str | None]
    remembered: OsLoginCache
    clock: Clock
    # The login name that the user requested.
    login: str | None
    # Returns the expiry of a new key, None for no expiry.
    expires: Callable[[], datetime | None]
    # Gets a message for each change and exception.
    notify: Callable[[str], None]

    def __post_init__(self) -> None:
        self._cache = _TTLCache(self.clock)

    def os_login(self, node: Node, key: SshKey) -> str | None:
        """Import the key into OS Login, and return its login name; None if metadata decides.

        Raises `OsLoginError` if a key is not enough, and the error of the service if the import fails.
        """
        if node.metadata.get(OS_LOGIN_ENABLED, "true").strip().lower() != "true":
            return None
        project = node.name.project
        switches = self._cache.peek(f"metadata of {project}")
        if switches is None:
            switches = self.remembered.of(project)
        if switches is None:
            switches = self._project_metadata(project)
        if not is_switch_on(OS_LOGIN_ENABLED, node.metadata, switches):
            return None
        account = self._account(node)
        check_os_login_requirements(node.name.node_id, account, node.metadata, switches)
        region = node.name.zone.rpartition("-")[0]
        return self._cache.get_or_load(
            f"login of {project}/{region}",
            lambda: self._import_key(account, key, project=project, region=region),
        )

    def needs_entry(self, node: Node, entry: str) -> bool:
        """Return whether our key must be added to the metadata of the node.

        It need not if it is already there, or in the metadata of the project and the node does not block those. gcloud
        decides in the same way.
        """
        now = self.clock.now()
        if has_metadata_key(node.metadata.get("ssh-keys", ""), entry, now=now):
            return False
        if _blocks_project_keys(node):
            return True
        return not has_metadata_key(self._project_metadata(node.name.project).get("ssh-keys", ""), entry, now=now)

    def where_known(self, node: Node, key: SshKey, login: str) -> KnownKey:
        """Return where our key is stored for a node, without changing anything. `login` is the name for metadata."""
        project = node.name.project
        if is_switch_on(OS_LOGIN_ENABLED, node.metadata, switches := self._project_metadata(project)):
            account = self._account(node)
            check_os_login_requirements(node.name.node_id, account, node.metadata, switches)
            profile = self.profiles().profile(account, project)
            name, found = next(iter(profile.logins), None), profile.key(key.public)
            return KnownKey("OS Login" if found else None, name, found.expires if found else None)
        entry = metadata_key_line(login, key)
        lists = (("node metadata", node.metadata), ("project metadata", {} if _blocks_project_keys(node) else switches))
        for keeper, metadata in lists:
            is_there, expires = find_key_expiry(metadata.get("ssh-keys", ""), entry)
            if is_there:
                return KnownKey(keeper, login, expires)
        return KnownKey(None, login, None)

    def _account(self, node: Node) -> str:
        account = self._cache.get_or_load("account", self.caller)
        if account is None:
            hint = "set it with `gcloud config set account EMAIL`, or use the credentials of a service account"
            why = f"`{node.name.node_id}` uses OS Login, but the account of the credentials is unknown"
            raise OsLoginError(why, hint=hint)
        return account

    def _import_key(self, account: str, key: SshKey, *, project: str, region: str) -> str:
        """Return the login name of the profile, once it has our key for long enough."""
        profiles, expires, now = self.profiles(), self.expires(), self.clock.now()
        profile = profiles.profile(account, project)
        found = profile.key(key.public)
        if found is None or not profile.logins:
            self.notify(f"adding our ssh key to the OS Login profile of `{account}`")
            profile = profiles.import_key(account, key.public, project=project, region=region, expires=expires)
        else:
            least = (expires - now) / 2 if expires else _SHORTEST_VALIDITY
            if found.expires is not None and found.expires - now < least:
                profiles.set_expiry(account, found, expires)
        if not profile.logins:
            raise OsLoginError(
                f"OS Login has no POSIX account for `{account}`",
                hint=f"check it with `gcloud compute os-login describe-profile --account={command_word('account', account)}`",
            )
        if self.login in profile.logins:
            return self.login
        if self.login is not None:
            self.notify(f"using the login name of OS Login, `{profile.logins[0]}`, instead of `{self.login}`")
        return profile.logins[0]

    def _project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the metadata of the project; empty if it cannot be read."""

        def read() -> Mapping[str, str]:
            try:
                found = self.projects().project_metadata(project)
            except AccessError:
                # The usual roles for TPUs do not include the permission. The node's own metadata must suffice.
                found = {}
            except (ServiceUnavailableError, NotFoundError, QuotaError):
                return {}
            self.remembered.remember(project, found)
            return found

        return self._cache.get_or_load(f"metadata of {project}", read)


def _blocks_project_keys(node: Node) -> bool:
    return node.metadata.get("block-project-ssh-keys", "").strip().lower() == "true"


class _TTLCache:
    """A cache of recent answers. A run may last for days, in which keys expire and settings change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, tuple[timedelta, Any]] = {}

    def peek(self, name: str) -> Any:
        """Return the cached value, or None if it is missing or too old."""
        at, found = self._found.get(name, (None, None))
        return found if at is not None and self._clock.monotonic() - at < OS_LOGIN_CACHE_LIFETIME else None

    def get_or_load(self, name: str, load: Callable[[], _T]) -> _T:
        """Return the cached value, else the result of `load`."""
        value: _T | None = self.peek(name)
        if value is None:
            value = load()
            self._found[name] = (self._clock.monotonic(), value)
        return value


# "Wait up to 60 s after the metadata update" [Google's troubleshooting guide for Cloud TPU].
_KEY_PATIENCE = timedelta(seconds=60)
_KEY_PROBE_TIMEOUT = timedelta(seconds=15)
_KEY_PROBES = 32


def await_key(clock: Clock, targets: Sequence[Target], notify: Callable[[str], None]) -> None:
    """Wait until no worker refuses our key, or for one minute: the guest agent needs some seconds to add it.

    Only `true` is run on the workers. Unreachable workers are not awaited. Raises `SshProgramMissingError`.
    """
    refusing = list(targets)

    def step() -> Wait | None:
        refusing[:] = _targets_refusing_key(refusing)
        what = f"waiting up to {_KEY_PATIENCE.total_seconds():g} s until the workers accept the new ssh key"
        return Wait(what) if refusing else None

    poll(Notes(clock, notify), "the key", step, until=clock.monotonic() + _KEY_PATIENCE, late=lambda *_: None)


def _targets_refusing_key(targets: Sequence[Target]) -> list[Target]:
    outcomes = fan_out(lambda one: probe_ssh(one.connection, _KEY_PROBE_TIMEOUT), targets, limit=_KEY_PROBES)
    return [each.item for each in outcomes if each.get().outcome is ProbeOutcome.KEY_REFUSED]
