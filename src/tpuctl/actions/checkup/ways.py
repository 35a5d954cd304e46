"""The context of the probes: paths, settings and access to the cloud."""

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
    """Access to tokens: `load` returns the credentials, `request` the transport for google-auth."""

    load: Callable[[], Any]
    request: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccess:
    """Access to the chosen cloud without credentials. No request is sent to a host that is not listed here.

    `origins` are the hosts by name, each with a URL; `http` creates the transport; `has_names`: their names are resolved;
    `clock` is compared with theirs. `tokens` is None if no account is needed.
    """

    origins: Mapping[str, str]
    http: Callable[[], Any]
    clock: Clock
    has_names: bool = True
    tokens: TokenAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Paths, settings and access to the cloud. Only the settings have been read yet, and no request was sent.

    `clock` is the real one. `cloud` is None if the settings do not say which cloud is meant, or if the chosen sandbox cannot be
    opened (`closed` is why): then no request is sent. `journal` is None if it is in a bucket; `key` is None for gcloud's key;
    `node` is the NODE that the user named. A value that cannot be read is Unknown.
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
        """The clock of the chosen cloud; the real one if there is none."""
        return self.cloud.clock if self.cloud else self.clock

    @property
    def is_local(self) -> bool:
        """Return whether calls stay on this machine, so that no account is needed."""
        return self.is_sandbox or (isinstance(self.endpoint, Known) and self.endpoint.value.is_loopback)
