"""Who lets our key in: a node's own metadata, its project's, or OS Login, where it is imported."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tpuctl.errors import AccessError, NotFoundError, QuotaError, ServiceUnavailableError
from tpuctl.remote.keys import holds_key, metadata_entry
from tpuctl.remote.keys.metadata import end_of
from tpuctl.remote.keys.os_login import ENABLED, OsLoginError, check_demands, is_on
from tpuctl.remote.keys.switches import LIFETIME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.api.oslogin import LoginKey, LoginProfile
    from tpuctl.clock import Clock
    from tpuctl.model import Node
    from tpuctl.remote.keys import SshKey
    from tpuctl.remote.keys.switches import RememberedSwitches

_T = TypeVar("_T")
_BLOCK = "block-project-ssh-keys"
# A key of a profile that ends sooner is made to last: what is begun now may connect again for a while.
_ENOUGH = timedelta(hours=1)


class Projects(Protocol):
    """Where the metadata of projects is read."""

    def project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the metadata that all machines of a project have."""


class Profiles(Protocol):
    """Where the keys of OS Login are kept."""

    def profile(self, account: str, project: str) -> LoginProfile:
        """Return the POSIX names and keys of an account."""

    def import_key(
        self, account: str, public: str, *, project: str, region: str, expires: datetime | None = None
    ) -> LoginProfile:
        """Add a key."""

    def set_expiry(self, account: str, key: LoginKey, expires: datetime | None) -> None:
        """Let a key last until another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What admission asks. `account` is the identity that calls are made as, nothing where nobody knows it."""

    projects: Callable[[], Projects]
    profiles: Callable[[], Profiles]
    account: Callable[[], str | None]
    remembered: RememberedSwitches
    clock: Clock


class Keeper(StrEnum):
    """Where a key is kept that workers take."""

    NODE = "node metadata"
    PROJECT = "project metadata"
    OS_LOGIN = "OS Login"


@dataclass(frozen=True, slots=True)
class Known:
    """Where our key is known, if anywhere; the name to log in with; and when that ends, if it does."""

    keeper: Keeper | None
    login: str | None
    expires: datetime | None


class Admission:
    """Finds out, for each node, who lets our key in. `login` is the name that the user asked for, if any.

    `expires` gives the time until which a key is to count, nothing for ever. `tell` is told what the user did not ask for.
    """

    def __init__(
        self,
        services: Services,
        *,
        login: str | None,
        expires: Callable[[], datetime | None],
        tell: Callable[[str], None],
    ) -> None:
        self._services, self._login, self._expires, self._tell = services, login, expires, tell
        self._metadata: _Recent[Mapping[str, str]] = _Recent(services.clock)
        self._logins: _Recent[str] = _Recent(services.clock)
        self._accounts: _Recent[str | None] = _Recent(services.clock)

    def os_login(self, node: Node, key: SshKey) -> str | None:
        """Let OS Login know the key, and return the login name that it gives; None if metadata decides.

        Raises `OsLoginError` if a key is not enough, and what the service raises where it cannot be imported.
        """
        if node.metadata.get(ENABLED, "true").strip().lower() != "true":
            return None
        project = node.name.project
        switches = self._switches(project)
        if not is_on(ENABLED, node.metadata, switches):
            return None
        account = self._account(node)
        check_demands(node.name.node_id, account, node.metadata, switches)
        region = node.name.zone.rpartition("-")[0]
        return self._logins.get(
            f"{project}/{region}",
            lambda: self._chosen(account, self._admitted(account, key, project=project, region=region)),
        )

    def needs_entry(self, node: Node, entry: str) -> bool:
        """Return whether our key is still to be put into the node's metadata.

        Not where it is there, or in the project's, which the node heeds unless it blocks them, as gcloud does too.
        """
        now = self._services.clock.now()
        if holds_key(node.metadata.get("ssh-keys", ""), entry, now=now):
            return False
        if node.metadata.get(_BLOCK, "").strip().lower() == "true":
            return True
        return not holds_key(self._project_metadata(node.name.project).get("ssh-keys", ""), entry, now=now)

    def where_known(self, node: Node, key: SshKey, login: str) -> Known:
        """Return who lets our key in to a node, as things are: nothing is changed. `login` is the one for metadata."""
        project = node.name.project
        if is_on(ENABLED, node.metadata, switches := self._project_metadata(project)):
            account = self._account(node)
            check_demands(node.name.node_id, account, node.metadata, switches)
            profile = self._services.profiles().profile(account, project)
            name, found = next(iter(profile.logins), None), profile.key(key.public)
            return Known(Keeper.OS_LOGIN if found else None, name, found.expires if found else None)
        entry = metadata_entry(login, key)
        blocks = node.metadata.get(_BLOCK, "").strip().lower() == "true"
        lists = ((Keeper.NODE, node.metadata), (Keeper.PROJECT, {} if blocks else switches))
        for keeper, metadata in lists:
            is_there, expires = end_of(metadata.get("ssh-keys", ""), entry)
            if is_there:
                return Known(keeper, login, expires)
        return Known(None, login, None)

    def _account(self, node: Node) -> str:
        account = self._accounts.get("", self._services.account)
        if account is None:
            hint = "name it with `gcloud config set account EMAIL`, or use the credentials of a service account"
            why = f"`{node.name.node_id}` uses OS Login, and it is not known whose credentials these are"
            raise OsLoginError(why, hint=hint)
        return account

    def _admitted(self, account: str, key: SshKey, *, project: str, region: str) -> LoginProfile:
        """Return the profile once it has our key for long enough."""
        profiles, expires, now = self._services.profiles(), self._expires(), self._services.clock.now()
        profile = profiles.profile(account, project)
        found = profile.key(key.public)
        if found is None or not profile.logins:
            self._tell(f"adding our ssh key to the OS Login profile of `{account}`")
            return profiles.import_key(account, key.public, project=project, region=region, expires=expires)
        least = (expires - now) / 2 if expires else _ENOUGH
        if found.expires is not None and found.expires - now < least:
            profiles.set_expiry(account, found, expires)
        return profile

    def _chosen(self, account: str, profile: LoginProfile) -> str:
        if not profile.logins:
            raise OsLoginError(
                f"OS Login has no POSIX account for `{account}`",
                hint=f"look with `gcloud compute os-login describe-profile --account={account}`",
            )
        if self._login in profile.logins:
            return self._login
        if self._login is not None:
            self._tell(f"OS Login decides the login name: `{profile.logins[0]}` in place of `{self._login}`")
        return profile.logins[0]

    def _switches(self, project: str) -> Mapping[str, str]:
        known = self._metadata.peek(project)
        if known is None:
            known = self._services.remembered.of(project)
        return self._project_metadata(project) if known is None else known

    def _project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the project's metadata; none where it may not or cannot be read."""
        return self._metadata.get(project, lambda: self._read(project))

    def _read(self, project: str) -> Mapping[str, str]:
        try:
            found = self._services.projects().project_metadata(project)
        except AccessError:
            # The usual roles for TPUs do not include it; the node's own metadata must do then.
            found = {}
        except (ServiceUnavailableError, NotFoundError, QuotaError):
            return {}
        self._services.remembered.remember(project, found)
        return found


class _Recent(Generic[_T]):
    """What was found out lately. A run may last for days, in which keys expire and switches are turned."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, tuple[timedelta, _T]] = {}

    def peek(self, name: str) -> _T | None:
        """Return what is known, if it is recent."""
        at, found = self._found.get(name, (None, None))
        return found if at is not None and self._clock.monotonic() - at < LIFETIME else None

    def get(self, name: str, find: Callable[[], _T]) -> _T:
        """Return what is known, found out where it is not."""
        known = self.peek(name)
        if known is None:
            known = find()
            self._found[name] = (self._clock.monotonic(), known)
        return known
