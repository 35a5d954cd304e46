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
    from tpuctl.clock import Clock
    from tpuctl.preflight.wanted import Wishes
    from tpuctl.settings import ConfigFile, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Where things are, and how the cloud is reached. Nothing has been read or sent yet but the settings.

    `clock` is the real one, whose time a network takes; `cloud_clock` tells the time that the cloud's is compared with. `http`
    makes an http object without a token, `load` the credentials, `request` how google-auth reaches the source of tokens.
    `journal` is nothing where it is in a bucket; `key` nothing where it is gcloud's. What cannot be had is unknown.
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
    cloud_clock: Clock
    timeout: timedelta
    http: Callable[[], Any]
    load: Callable[[], Any]
    request: Callable[[], Any]
    sources: Callable[[], Sources]

    @property
    def is_local(self) -> bool:
        """Tell whether calls stay on this machine, so that no account is needed."""
        return self.is_sandbox or (isinstance(self.endpoint, Known) and self.endpoint.value.is_loopback)
