"""The services that a run uses, each opened on first use. The only place that chooses between cloud and sandbox."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tpuctl.app.state_paths import journal_folder
from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.cloud.tpu import TpuClient
from tpuctl.config.settings import SourceKind
from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath
from tpuctl.nodes.lookup import get_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.cloud.projects import OsLoginClient
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.cloud.transport import HttpFactory
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.lease import LeaseKeeper
    from tpuctl.nodes.ssh_workers import SshWorkers
    from tpuctl.sandbox.state import SandboxState

# Time limit for writing the remaining lines at the end of a run, which may have been interrupted.
_FLUSH_TIMEOUT = timedelta(seconds=10)


class Services:
    """What a run talks to, made of the settings of its `App`, which closes it."""

    def __init__(self, app: App) -> None:
        self._app = app

    def with_same_connections(self, app: App) -> Services:
        """Return the services of another app, which use these connections to the cloud."""
        services = Services(app)
        services.http = self.http
        return services

    @cached_property
    def sandbox(self) -> SandboxState:
        """The sandbox, created if there is none."""
        from tpuctl.app.local_sandbox import open_sandbox  # noqa: PLC0415  # sqlite3, only for the sandbox

        return open_sandbox(self._app)

    @cached_property
    def http(self) -> HttpFactory:
        """The connections to the cloud, for all its APIs. Nothing is sent yet."""
        from tpuctl.app.connections import open_connections  # noqa: PLC0415  # the sandbox needs none

        return open_connections(self._app, self._load_credentials)

    def _load_credentials(self) -> Any:  # google-auth's credentials
        from tpuctl.app.credentials import load_credentials  # noqa: PLC0415  # a cached token needs no google-auth

        return load_credentials(self._app)

    def http_access(self) -> tuple[Callable[[], Any], str | None]:
        """Return a factory of http objects, and the endpoint; None for Google's own."""
        app = self._app
        # Most commands required trust when they began. Others need it only for a call.
        app.require_trust()
        if app.is_sandbox:
            endpoint = app.settings["endpoint"]
            if endpoint and endpoint.source.kind is SourceKind.FLAG:
                raise InvalidInputError("cannot use `--endpoint` with the sandbox", hint="remove one of them")
            from tpuctl.sandbox.in_process import SandboxHttp  # noqa: PLC0415  # only for the sandbox

            sandbox = self.sandbox
            return self._traced(lambda: SandboxHttp(sandbox)), None
        return self._traced(self.http), app.settings.text("endpoint")

    def _traced(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """Return a factory whose http objects print each request on stderr if the run is verbose."""
        if not self._app.is_verbose:
            return factory
        return lambda: _TracedHttp(factory(), self._app.terminal.note)

    @cached_property
    def client(self) -> TpuClient:
        """The client of the TPU API: of the sandbox in this process, of another endpoint, or of Google."""
        factory, endpoint = self.http_access()
        return TpuClient(factory, self._app.clock, endpoint=endpoint)

    @cached_property
    def storage(self) -> StorageClient:
        """The client of Cloud Storage, which may hold the journal and the leases."""
        from tpuctl.cloud.storage import StorageClient  # noqa: PLC0415  # most users work on one machine

        factory, endpoint = self.http_access()
        return StorageClient(factory, self._app.clock, endpoint=endpoint)

    def os_login(self) -> OsLoginClient:
        """Return the client of OS Login."""
        from tpuctl.cloud.projects import OsLoginClient  # noqa: PLC0415  # most commands reach no worker

        factory, endpoint = self.http_access()
        return OsLoginClient(factory, self._app.clock, endpoint=endpoint)

    @cached_property
    def journal(self) -> Journal:
        """The journal of states and actions; in a bucket if the setting `journal` names one. Nothing is read or written yet."""
        from tpuctl.nodes.journal import BucketJournalStore, Journal  # noqa: PLC0415  # `list` needs no journal

        app = self._app
        warn = app.terminal.warn
        place = app.settings.text("journal")
        if place is None:
            return Journal(journal_folder(app.invocation.environ, sandbox=app.is_sandbox), warn=warn)
        # The client is created first, so that it is closed last: after the waiting lines were written.
        store = BucketJournalStore(self.storage, BucketPath.parse(place), app.clock, warn=warn)
        opened = Journal(store, warn=warn)

        def flush() -> None:
            with limit_cloud_calls(SystemClock(), _FLUSH_TIMEOUT):
                opened.flush()

        app.on_close(flush)
        return opened

    @cached_property
    def leases(self) -> LeaseKeeper:
        """The leases: which run of tpuctl may change which node; in Cloud Storage if the setting `lease` names a bucket."""
        from tpuctl.nodes import lease  # noqa: PLC0415  # most commands change nothing

        app = self._app
        store: lease.LeaseStore
        if text := app.settings.text("lease"):
            store = lease.BucketLeaseStore(self.storage, BucketPath.parse(text))
        else:
            local = lease.LocalLeaseStore(app.state_folder / "leases", app.clock, notify=app.terminal.warn)
            app.on_close(local.close)
            store = local
        leases = lease.LeaseKeeper(store, app.clock, lease.LeaseOwner.of_process())
        app.on_close(leases.close)
        return leases

    @cached_property
    def workers(self) -> SshWorkers:
        """The ssh access to workers of nodes."""
        from tpuctl.app.worker_access import ssh_workers  # noqa: PLC0415  # most commands reach no worker

        return ssh_workers(self._app)

    def find(self, text: str) -> Node:
        """Return the one node of a name. Raises `NotFoundError` or `ConflictError` if it is not exactly one."""
        return get_node(self.client, self._app.place, self._app.reference(text))

    @property
    def owner_label(self) -> str:
        """The label of the user, which the nodes have that the user creates."""
        from tpuctl.app.identity import owner_label  # noqa: PLC0415  # `list` needs no owner

        return owner_label(self._app)

    def context(self, tell: Callable[[NodeEvent], None], *, preflight: PreflightCheck | None = None) -> ActionContext:
        """Return the context of actions; `tell` receives each event, `preflight` checks nodes before they are created."""
        from tpuctl.app.action_context import action_context  # noqa: PLC0415  # `list` changes nothing

        return action_context(self._app, tell, preflight=preflight)


class _TracedHttp:
    """An http object that prints each request: method, URL, status and time. Never headers or bodies: they hold secrets."""

    def __init__(self, http: Any, note: Callable[[str], None]) -> None:  # an httplib2.Http
        self._http, self._note = http, note

    @property
    def timeout(self) -> float | None:
        """The seconds that the next exchange may take."""
        timeout: float | None = self._http.timeout
        return timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._http.timeout = seconds

    def request(self, uri: str, method: str = "GET", **options: Any) -> Any:  # httplib2's signature
        started = time.perf_counter()
        outcome = "no answer"
        try:
            response, content = self._http.request(uri, method=method, **options)
            outcome = str(response.status)
        finally:
            self._note(f"{method} {uri}: {outcome} in {(time.perf_counter() - started) * 1000:.0f} ms")
        return response, content

    def __getattr__(self, name: str) -> Any:  # any other attribute of httplib2.Http
        return getattr(self._http, name)
