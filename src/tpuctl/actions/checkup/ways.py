"""What the checkup is given by the command line: where things are, and how the cloud is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import Fact, Known

if TYPE_CHECKING:
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.api.endpoint import Endpoint
    from tpuctl.api.transport import Proxy
    from tpuctl.checkup.surroundings.facts import Closed
    from tpuctl.clock import Clock
    from tpuctl.preflight.wanted import Wishes
    from tpuctl.settings import ConfigFile, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccess:
    """How a token is had: `load` gives the credentials, `request` how google-auth reaches the source of tokens."""

    load: Callable[[], Any]
    request: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccess:
    """The cloud that was chosen, as it is reached without an account. Nothing is sent to a host that is not named here.

    `origins` are the hosts by name, each with an address to ask at, and `http` makes what asks there; `has_names` tells whether
    their names are looked up, `clock` the time that theirs is compared with. `tokens` is nothing where no account is needed.
    """

    origins: Mapping[str, str]
    http: Callable[[], Any]
    clock: Clock
    has_names: bool = True
    tokens: TokenAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Where things are, and how the cloud is reached. Nothing has been read or sent yet but the settings.

    `clock` is the real one, whose time a network takes. `cloud` is nothing where it is not known which one is meant, or where
    the sandbox that is meant cannot be opened (`closed` says why): nobody is asked then. `journal` is nothing where it is in a
    bucket; `key` nothing where it is gcloud's; `node` the node that is looked at too. What cannot be had is unknown.
    """

    environ: Mapping[str, str]
    home: Path
    key: Path | None
    state: Path
    user_file: Path
    project_file: Path | None
    files: tuple[ConfigFile, ...]
    journal: Path | None
    known_hosts: tuple[Path, ...]
    settings: Fact[Settings]
    problems: tuple[str, ...]
    project: Fact[str]
    wishes: Wishes
    zone: str
    is_sandbox: bool
    endpoint: Fact[Endpoint]
    proxy: Fact[Proxy]
    proxy_source: str | None
    ca_file: Path | None
    clock: Clock
    timeout: timedelta
    cloud: CloudAccess | None
    closed: Closed | None
    node: str | None
    sources: Callable[[], Sources]

    @property
    def cloud_clock(self) -> Clock:
        """The clock of the cloud that was chosen; the real one where there is none."""
        return self.cloud.clock if self.cloud else self.clock

    @property
    def is_local(self) -> bool:
        """Tell whether calls stay on this machine, so that no account is needed."""
        return self.is_sandbox or (isinstance(self.endpoint, Known) and self.endpoint.value.is_loopback)
