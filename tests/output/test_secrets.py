"""Secrets: no output has a planted one, except metadata with `--show-metadata`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from tests.conftest import Console, Sandbox
from tpuctl.cli.tree import command_tree
from tpuctl.clock import ManualClock
from tpuctl.escaping import mask_command_line, mask_metadata, mask_url, mask_value

SECRET = "hunter2-s3cr3t"
METADATA = {
    "startup-script": f"#!/bin/sh\nexport TOKEN={SECRET}\n",
    "token": SECRET,
    "ssh-keys": f"ada:ssh-rsa {SECRET}",
}
NEW = ("--type", "v4-8", "--zone", "us-central2-b", "--metadata", f"token={SECRET},other={SECRET}")


@pytest.fixture
def planted(tpuctl: Console, sandbox: Sandbox) -> Console:
    """The secret is in nodes, requests, the project file, the journal, the environment and a file of metadata."""
    for name, fields in {"demo": {}, "off": {"state": "STOPPED"}, "dead": {"state": "PREEMPTED"}}.items():
        sandbox.add_node(name, metadata=METADATA, **fields)
    sandbox.add_queued_resource("request", node_ids=("later",))
    journal = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "journal" / "sandbox" / "us-central2-b"
    journal.mkdir(parents=True)
    spec = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base", "metadata": METADATA}
    (journal / "old.jsonl").write_text(
        json.dumps({"at": "2026-03-01T10:00:00Z", "by": "t", "event": "create", "spec": spec})
    )
    (tpuctl.folder / "script.sh").write_text(METADATA["startup-script"])
    (tpuctl.folder / "train.log").write_text("RuntimeError: No space left on device\n")
    (tpuctl.folder / "tpuctl.yaml").write_text(json.dumps({"metadata": {"from-file": SECRET}}))
    return replace(
        tpuctl,
        environ={
            **tpuctl.environ,
            "HTTPS_PROXY": f"http://ada:{SECRET}@proxy.example:3128",
            "TPUCTL_TOKEN": SECRET,
            "TPUCTL_TRUST_PROJECT_FILE": "1",
        },
    )


# By command: a line that shows as much as it can; none where only workers are talked to, or nothing is shown of a node.
LINES: dict[str, tuple[str, ...] | None] = {
    "up": ("up", "new", *NEW, "--no-wait", "-o", "json", "-v"),
    "down": ("down", "demo", "--dry-run", "-o", "json"),
    "list": ("list", "-o", "json", "-v"),
    "status": ("status", "demo", "off", "-o", "yaml"),
    "check": ("check", "--type", "v4-8", "--zone", "us-central2-b", "-o", "json"),
    "explain": ("explain", "train.log", "--node", "demo", "-o", "json"),
    "wait": ("wait", "demo", "--for", "ready", "--events", "-"),
    "watch": None,
    "help": ("help", "settings"),
    "options": ("options",),
    "trust": ("trust", "--list", "-o", "json"),
    "history": ("history", "old", "-o", "json"),
    "reset": ("reset", "demo", "--mode", "recreate", "--dry-run"),
    "start": ("start", "off", "-o", "json", "--events", "{folder}/events.json"),
    "stop": ("stop", "demo", "--yes", "-o", "json"),
    "create": ("create", "made", *NEW, "-o", "yaml", "--events", "{folder}/events.json"),
    "delete": ("delete", "demo", "--dry-run"),
    "update": ("update", "demo", "--metadata", f"more={SECRET}", "-o", "json"),
    "maintenance": ("maintenance", "demo", "-o", "json"),
    "ssh": ("ssh", "demo", "--dry-run"),
    "run": None,
    "scp": None,
    "sync": None,
    "env": ("env", "demo"),
    "ray up": None,
    "ray status": None,
    "ray down": None,
    "unstick": None,
    "test": None,
    "stacks": None,
    "top": None,
    "ssh-config": ("ssh-config", "demo", "--print"),
    "ssh-key show": ("ssh-key", "show", "-o", "json"),
    "ssh-key renew": None,
    "attributes": ("attributes", "demo", "-o", "json"),
    "jobs": None,
    "logs": None,
    "attach": None,
    "kill": None,
    "doctor": ("doctor", "--all", "-o", "json"),
    "bundle": ("bundle", "demo", "--no-workers", "--file", "all.tar.gz", "-o", "json"),
    "queue list": ("queue", "list", "-o", "json"),
    "queue status": ("queue", "status", "request", "-o", "json"),
    "queue wait": ("queue", "wait", "request", "--timeout", "0", "-o", "json"),
    "queue cancel": ("queue", "cancel", "request", "-o", "json"),
    "queue retry": ("queue", "retry", "request", "-o", "json"),
    "cost": ("cost", "-o", "json"),
    "gc": ("gc", "-o", "json"),
    "extend": ("extend", "demo", "1h", "-o", "json"),
    "types": ("types", "-o", "json"),
    "versions": ("versions", "--zone", "us-central2-b", "-o", "json"),
    "config show": ("config", "show", "--all", "-o", "json"),
    "config set": ("config", "set", "endpoint", f"https://ada:{SECRET}@api.example"),
    "config unset": ("config", "unset", "metadata", "--here"),
    "config path": ("config", "path"),
    "config init": ("config", "init", "--type", "v4-8", "--yes"),
    "sandbox status": ("sandbox", "status", "-o", "json"),
    "sandbox reset": None,
    "sandbox advance": None,
    "sandbox fault": ("sandbox", "fault", "list", "-o", "json"),
    "sandbox seed": None,
    "sandbox stock": ("sandbox", "stock", "-o", "json"),
    "sandbox scenario": None,
    "sandbox log": ("sandbox", "log", "-o", "json"),
    "sandbox serve": None,
    "sandbox env": ("sandbox", "env", "--port", "1234"),
    "completion": None,
    "schema": ("schema", "list"),
    "version": ("version", "-o", "json"),
}
SHOWN = {
    "list": ("list", "-o", "json"),
    "status": ("status", "demo", "-o", "yaml"),
    "history": ("history", "old", "-o", "json"),
    "up": ("up", "new", *NEW, "--no-wait", "-o", "json"),
    "up-dry-run": ("up", "new", *NEW, "--dry-run"),
    "create": ("create", "made", *NEW, "-o", "yaml"),
    "update-dry-run": ("update", "demo", "--metadata", f"more={SECRET}", "--dry-run", "-o", "json"),
    "config-show": ("config", "show", "metadata"),
}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def test_every_command_is_covered() -> None:
    assert sorted(leaves(command_tree())) == sorted(LINES)


@pytest.mark.parametrize("name", [name for name, line in LINES.items() if line])
def test_command_output_has_no_secret(planted: Console, name: str) -> None:
    out, err, _ = planted(*(word.replace("{folder}", str(planted.folder)) for word in LINES[name] or ()))
    events = planted.folder / "events.json"

    assert SECRET not in out + err + (events.read_text() if events.exists() else "")
    assert out + err != ""
    assert events.exists() == ("{folder}/events.json" in (LINES[name] or ()))


@pytest.mark.parametrize("name", SHOWN)
def test_show_metadata_prints_metadata(planted: Console, name: str) -> None:
    out, err, code = planted(*SHOWN[name], "--show-metadata")

    assert (SECRET in out, code) == (True, 0), err


def test_hidden_value_has_its_length(planted: Console) -> None:
    (node,) = json.loads(planted("status", "demo", "-o", "json")[0])

    assert node["metadata"] == {
        "startup-script": "<hidden: 38 bytes>",
        "token": "<hidden: 14 bytes>",
        "ssh-keys": "<hidden: 26 bytes>",
    }


NODE_JSON = {"name": "n", "metadata": {"a": SECRET}}


@pytest.mark.parametrize(
    "value",
    [
        NODE_JSON,
        [NODE_JSON],
        {"tpu": {"nodeSpec": [{"node": NODE_JSON}]}},
        {"metadata": {"@type": "type.googleapis.com/OperationMetadata", "target": "n"}, "response": NODE_JSON},
        {"spec": {"kept": {}, "metadata": {"a": [SECRET]}}},
    ],
    ids=["node", "list", "queued-resource", "operation", "journal"],
)
def test_metadata_in_json_is_hidden(value: Any) -> None:
    shown = json.dumps(mask_metadata(value))

    assert (SECRET in shown, "<hidden: " in shown) == (False, True)
    assert ("@type" in json.dumps(value)) == ("OperationMetadata" in shown)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("up", "a", "--metadata", f"k={SECRET},l=m"), ["up", "a", "--metadata", "k=<hidden: 14 bytes>,l=<hidden: 1 byte>"]),
        (("up", f"--metadata=^:^k={SECRET}:l=a,b"), ["up", "--metadata=^:^k=<hidden: 14 bytes>:l=<hidden: 3 bytes>"]),
        (("run", "a", "--env", f"T={SECRET}", "--env=HOME"), ["run", "a", "--env", "T=<hidden: 14 bytes>", "--env=HOME"]),
        (("run", "a", "--env", SECRET), ["run", "a", "--env", "<hidden: 14 bytes>"]),
        (("run", "a", "--", "./t", "--env", "a=b"), ["run", "a", "--", "./t", "--env", "a=b"]),
        (("list", "--endpoint", f"https://u:{SECRET}@h"), ["list", "--endpoint", "https://<hidden>@h"]),
        (("up", "a", "--labels", "k=v", "--metadata"), ["up", "a", "--labels", "k=v", "--metadata"]),
    ],
    ids=["metadata", "other-delimiter", "env", "stray", "remote-command", "endpoint", "unfinished"],
)  # fmt: skip
def test_printed_command_hides_secrets(arguments: tuple[str, ...], shown: list[str]) -> None:
    assert mask_command_line(arguments, {"HOME": "/h"}) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/path", "https://host/path"),
        ("https://ada:pass@host/path", "https://<hidden>@host/path"),
        ("https://ada:p/a?s#s@host", "https://<hidden>"),
        ("ada:pass@host:80", "<hidden>@host:80"),
        ("https://host/?key=pass&a=b", "https://host/?<hidden>"),
        ("https://host/#pass", "https://host/#<hidden>"),
        ("ada:pa://ss@host", "<hidden>@host"),
    ],
)
def test_url_hides_secrets(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("update", "demo", "--metadata", "a=b", "--metadata", f"c=d,{SECRET}"),
         "a value of `--metadata` number 2 has a comma, which begins the next key"),
        (("update", "demo", "--metadata-from-file", SECRET), "item 1 of `--metadata-from-file` number 1 is not KEY=VALUE"),
        (("run", "demo", "--env", "A=b", "--env", SECRET, "--", "true"), "`--env` number 2: not a variable"),
        (("run", "demo", "--env", SECRET.replace("-", "_"), "--", "true"),
         "`--env` number 1: no local variable has that name"),
        (("update", "demo", "--metadata", "a=b", SECRET),
         "one of the 2 names is no node; it is not shown, because it may be part of a secret value"),
        (("update", "demo", "--metadata", f"a={mask_value(SECRET)}"),
         "the value of `a` is `<hidden: 14 bytes>`, which replaces a hidden value"),
        (("run", "demo", "--env", f"A={mask_value(SECRET)}", "--", "true"),
         "`--env` number 1: the value of `A` is `<hidden: 14 bytes>`, which replaces a hidden value"),
        (("list", "--no-sandbox", "--endpoint", f"https://h.example/?key={SECRET}"),
         "invalid endpoint `https://h.example/?<hidden>`: it has a query or a fragment"),
        (("list", "--no-sandbox", "--endpoint", f"https://ada:{SECRET}/@h.example"),
         "invalid endpoint `https://<hidden>@h.example`: its host or port is invalid"),
    ],
    ids=["metadata", "from-file", "env", "env-like-a-name", "extra", "masked-metadata", "masked-env", "query", "userinfo"],
)  # fmt: skip
def test_error_does_not_repeat_a_secret(planted: Console, arguments: tuple[str, ...], expected: str) -> None:
    out, err, code = planted(*arguments)

    assert (out, err.splitlines()[0], code) == ("", f"error: {expected}", 2)
    assert SECRET not in err


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"http://ada:{SECRET}/@proxy", "the URL of the proxy is invalid"),
        (f"socks5://ada:{SECRET}@proxy", "unsupported proxy scheme `socks5`"),
    ],
)
def test_invalid_proxy_hides_its_password(planted: Console, url: str, expected: str) -> None:
    _, err, code = planted("list", "--no-sandbox", "--project", "p", HTTPS_PROXY=url)

    assert (err.splitlines()[0], SECRET in err, code) == (f"error: {expected}", False, 2)


@pytest.mark.parametrize("command", ["doctor", "config show"])
def test_invalid_endpoint_hides_its_secret(planted: Console, command: str) -> None:
    """Also if it is accepted because nothing is sent there."""
    for url in (f"https://ada:{SECRET}@h.example", f"https://h.example?key={SECRET}"):
        for form in ("json", "table"):
            out, err, _ = planted(*command.split(), "-o", form, TPUCTL_SANDBOX="0", TPUCTL_ENDPOINT=url)
            assert (SECRET in out + err, "<hidden>" in out + err) == (False, True)


def test_resume_command_hides_secrets(planted: Console) -> None:
    class Interrupting(ManualClock):
        def sleep(self, duration: timedelta) -> None:  # noqa: ARG002  # a clock's signature
            raise KeyboardInterrupt

    out, err, code = replace(planted, clock=Interrupting())("up", "new", *NEW)

    again = (
        "tpuctl up new --type v4-8 --zone us-central2-b --metadata 'token=<hidden: 14 bytes>,other=<hidden: 14 bytes>'"
    )
    assert f"  resume: {again}" in err.splitlines()
    assert "  hidden values are not repeated here: add them to the command" in err.splitlines()
    assert (SECRET in out + err, code) == (False, 130)


def test_stored_files_are_private_with_any_umask(tpuctl: Console) -> None:
    before = os.umask(0)
    try:
        tpuctl("create", "made", *NEW)
        tpuctl("ssh-config", "made")
    finally:
        os.umask(before)
    home, folder = Path(tpuctl.environ["HOME"]), Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "sandbox"
    kept = [path for top in (home / ".ssh", folder / "leases", folder / "journal") for path in (top, *top.rglob("*"))]

    assert {path.name: oct(path.stat().st_mode) for path in kept if path.stat().st_mode & 0o077} == {}
    assert {path.name for path in kept} >= {".tpuctl_config.lock"}
