"""The route to a worker, the networks of this machine, and nodes that ssh cannot reach."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import ConflictError, InvalidInputError
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import check_login_state
from tpuctl.ssh.interactive import PortForward
from tpuctl.ssh.routes import (
    GceMetadata,
    GcloudMissingError,
    Route,
    Router,
    TunnelUnavailableError,
    UnreachableError,
    VpcNetwork,
    fetch_gce_metadata,
)

HERE = GceMetadata("p1", "42", (VpcNetwork("42", "default"), VpcNetwork("77", "shared")))
NAME = "projects/p1/locations/us-central2-b/nodes/trainer"


def node(network: str = "projects/p1/global/networks/default", *, external: str = "203.0.113.9", **fields: Any) -> Node:
    endpoint = {"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": external} if external else {}}
    return Node.from_api(
        {
            "name": NAME,
            "state": "READY",
            "networkEndpoints": [endpoint],
            "networkConfig": {"network": network, "enableExternalIps": bool(external)},
            **fields,
        }
    )


SHARED = "projects/host/global/networks/shared"


@pytest.mark.parametrize(
    ("here", "network", "external", "expected"),
    [
        (None, "projects/p1/global/networks/default", True, Route.EXTERNAL),
        (HERE, "projects/p1/global/networks/default", True, Route.INTERNAL),
        (HERE, "projects/42/global/networks/default", True, Route.INTERNAL),
        (HERE, "default", True, Route.INTERNAL),
        (HERE, "projects/p1/global/networks/other", True, Route.EXTERNAL),
        # Another project's network of the same name.
        (HERE, "projects/p2/global/networks/default", True, Route.EXTERNAL),
        (HERE, "projects/77/global/networks/shared", True, Route.INTERNAL),
        # A shared VPC, whose project is known by id there and by number here: taken where there is no other way.
        (HERE, SHARED, True, Route.EXTERNAL),
        (HERE, SHARED, False, Route.INTERNAL),
        (HERE, "projects/host/global/networks/other", False, None),
        (None, "default", False, None),
    ],
)
def test_internal_address_is_the_default_only_inside_the_network(
    here: GceMetadata | None, network: str, *, external: bool, expected: Route | None
) -> None:
    router = Router(here=lambda: here)
    asked = node(network, external="203.0.113.9" if external else "")
    if expected is None:
        with pytest.raises(UnreachableError):
            router.route_to(asked, 0)
    else:
        assert router.route_to(asked, 0) is expected
    assert (router.obstacle(asked) is None) is (expected is not None)


def test_named_route_needs_no_metadata() -> None:
    def never() -> GceMetadata:
        raise AssertionError

    routes = [Router(route=route, here=never).route_to(node(), 0) for route in Route]

    assert routes == list(Route)


def test_tunnel_command_matches_gcloud() -> None:
    asked = node()
    router = Router(
        route=Route.IAP, gcloud=lambda: "/opt/100% cloud/gcloud", impersonate="ci@p1.iam.gserviceaccount.com"
    )

    line = router.tunnel(asked, 0, "t1v-n-1-w-0")

    words = shlex.split(line.replace("%%", "%"))
    assert words == [
        *("/opt/100% cloud/gcloud", "compute", "start-iap-tunnel", "t1v-n-1-w-0", "%p", "--listen-on-stdin"),
        *("--project=p1", "--zone=us-central2-b", "--verbosity=warning"),
        "--impersonate-service-account=ci@p1.iam.gserviceaccount.com",
    ]
    assert "100%% cloud" in line
    with pytest.raises(TunnelUnavailableError):
        router.tunnel(asked, 0, None)
    with pytest.raises(InvalidInputError):
        router.tunnel(asked, 0, "w-0; reboot")
    with pytest.raises(GcloudMissingError):
        Router(route=Route.IAP).tunnel(asked, 0, "t1v-n-1-w-0")


METADATA = {
    "instance/network-interfaces/?recursive=true": [{"network": "projects/42/networks/default", "ip": "10.0.0.5"}],
    "project/project-id?alt=json": "p1",
    "project/numeric-project-id?alt=json": 42,
}


@contextmanager
def metadata_server(entries: dict[str, Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the standard library's name
            answer = entries.get(self.path.removeprefix("/computeMetadata/v1/"))
            is_asked_well = self.headers["Metadata-Flavor"] == "Google" and answer is not None
            self.send_response(200 if is_asked_well else 404)
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_networks_come_from_the_metadata_server(tmp_path: Path) -> None:
    laptop = tmp_path / "product_name"
    laptop.write_text("ThinkPad\n")
    with metadata_server(METADATA) as host:
        here = fetch_gce_metadata({"GCE_METADATA_HOST": host}, product=laptop)

        assert here == GceMetadata("p1", "42", (VpcNetwork("42", "default"),))
        assert fetch_gce_metadata({"GCE_METADATA_HOST": host, "NO_GCE_CHECK": "true"}, product=laptop) is None
    assert fetch_gce_metadata({"GCE_METADATA_HOST": host}, product=laptop) is None
    assert fetch_gce_metadata({}, product=laptop) is None
    with metadata_server({}) as host:
        assert fetch_gce_metadata({"GCE_METADATA_HOST": host}, product=laptop) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"health": "HEALTHY"}, None),
        ({"health": "UNHEALTHY_MAINTENANCE"}, "is READY, but it is under maintenance"),
        ({"health": "TIMEOUT"}, "is READY, but it does not respond to the service"),
        ({"health": "UNHEALTHY_TENSORFLOW"}, "is READY, but its machine learning software is unhealthy"),
        ({"state": "REPAIRING"}, "is REPAIRING: the service is repairing it, and ssh may fail"),
        ({"state": "UNKNOWN"}, "is UNKNOWN: its repair failed, and ssh may fail"),
        ({"state": "NEW"}, "is NEW: this version of tpuctl does not know that state, and ssh may fail"),
    ],
)
def test_ssh_to_doubtful_node_warns(fields: dict[str, str], expected: str | None) -> None:
    warning = check_login_state(node(**fields))

    assert (warning or "").startswith(f"`trainer` {expected}" if expected else "")
    assert (warning is None) is (expected is None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "CREATING"}, "tpuctl wait trainer"),
        ({"state": "STARTING"}, "tpuctl wait trainer"),
        ({"state": "STOPPED"}, "`tpuctl up trainer` starts it"),
        ({"state": "STOPPING"}, "waits until it has stopped"),
        ({"state": "DELETING"}, "recreates it"),
        ({"state": "PREEMPTED"}, "preempted it"),
        ({"state": "TERMINATED"}, "recreates it"),
        ({"state": "HIDDEN"}, "tpuctl status trainer"),
        ({"apiVersion": "V1"}, "log in to the virtual machine that uses it"),
    ],
)
def test_node_without_ssh_raises_with_a_remedy(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConflictError) as caught:
        check_login_state(node(**fields))

    assert words in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensorboard", PortForward(6006, 6006, is_fixed=False)),
        ("jupyter", PortForward(8888, 8888, is_fixed=False)),
        ("9000", PortForward(9000, 9000, is_fixed=False)),
        ("80:9000", PortForward(80, 9000, is_fixed=True)),
        *((text, None) for text in ("", "0", "65536", "1:", "host:80", "1:2:3", "TensorBoard", "-1")),
    ],
)
def test_forward_parses_names_and_ports(text: str, expected: PortForward | None) -> None:
    parse: Callable[[str], PortForward] = PortForward.parse
    if expected is None:
        with pytest.raises(InvalidInputError):
            parse(text)
    else:
        assert parse(text) == expected
