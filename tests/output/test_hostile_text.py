"""Hostile text in every output: it does not control the terminal, add a line or reorder characters."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import tpuctl
from tests.cloud.scripted_api import Received, Reply, ScriptedServer, refuse
from tests.conftest import Console
from tpuctl.escaping import dump_printable_json, dump_printable_yaml, escape_except_colors, escape_unprintable

ZONE = "us-central2-b"
# Clears the screen, adds a line, goes back to its beginning, and so on: what a terminal, an editor or an eye obeys.
EVIL = "a\x1b[2J\nerror: pwned\r  hint: pwned\x9b31m\u202e\u2066\u061c\u200b\u2028\x85\x7f\x07\x1b]0;t\x07\t\x1b[8mz"
# What is written on purpose: our colours, and what rich draws with.
OWN = re.compile(r"\r(?=\x1b\[)|\x1b\[(?:[0-9;]{1,8}m|[0-9]{0,3}[AK]|\?25[hl])")


def evil_node(name: str = "trainer", **fields: Any) -> dict[str, Any]:
    """A node with hostile text in every field that the API's types allow."""
    return {
        "name": f"projects/p/locations/{ZONE}/nodes/{name}",
        "id": "42",
        "state": "READY",
        "health": f"BAD{EVIL}",
        "healthDescription": EVIL,
        "description": EVIL,
        "acceleratorType": f"v4-8{EVIL}",
        "runtimeVersion": EVIL,
        "createTime": "2026-03-01T10:00:00Z",
        "labels": {f"key{EVIL}": EVIL},
        "metadata": {f"key{EVIL}": EVIL},
        "tags": [EVIL],
        "cidrBlock": EVIL,
        "networkConfig": {"network": EVIL, "subnetwork": EVIL},
        "serviceAccount": {"email": EVIL, "scope": [EVIL]},
        "networkEndpoints": [{"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": "192.0.2.1"}}],
        "symptoms": [{"symptomType": EVIL, "workerId": EVIL, "details": EVIL, "createTime": "2026-03-01T10:00:00Z"}],
        "upcomingMaintenance": {"type": EVIL, "maintenanceStatus": EVIL, "windowStartTime": "2026-03-01T10:00:00Z"},
        "queuedResource": f"projects/p/locations/{ZONE}/queuedResources/{EVIL}",
        **fields,
    }


NODES: dict[str, dict[str, Any]] = {
    "trainer": evil_node(),
    "odd": evil_node("odd", state=f"ODD{EVIL}", acceleratorType="v4-8"),
    "stopped": evil_node("stopped", state="STOPPED", acceleratorType="v4-8", queuedResource=""),
}
QUEUED = {
    "name": f"projects/p/locations/{ZONE}/queuedResources/waiting",
    "state": {"state": "SUSPENDED", "stateInitiator": EVIL},
    "tpu": {"nodeSpec": [{"parent": EVIL, "nodeId": "late", "node": evil_node()}]},
}


def answer(request: Received) -> Reply:
    path, word = request.path.partition("?")[0], request.path.partition("?")[0].rpartition("/")[2]
    lists: dict[str, Any] = {
        "nodes": {"nodes": list(NODES.values())},
        "queuedResources": {"queuedResources": [QUEUED]},
        "acceleratorTypes": {"acceleratorTypes": [{"name": f"{path}/v4-8", "type": f"v4-8{EVIL}"}]},
        "runtimeVersions": {"runtimeVersions": [{"name": f"{path}/odd", "version": EVIL}]},
        "operations": {"operations": []},
        "locations": {"locations": [{"name": f"projects/p/locations/{ZONE}", "locationId": ZONE}]},
    }
    if request.method != "GET":
        return refuse(400, "FAILED_PRECONDITION", EVIL)
    if word in lists:
        return Reply(lists[word])
    if word in NODES and path.startswith("/v2/"):
        return Reply(NODES[word])
    return refuse(403 if "compute" in path else 404, "PERMISSION_DENIED" if "compute" in path else "NOT_FOUND", EVIL)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with ScriptedServer(answer) as server:
        yield server.url


@pytest.fixture
def hostile(offline: Console, served: str) -> Console:
    environ = {"TPUCTL_SANDBOX": "0", "TPUCTL_ENDPOINT": served, "TPUCTL_PROJECT": "p", "TPUCTL_ZONE": ZONE}
    # A journal in which every text of the service stands, as a watcher has written it.
    folder = Path(offline.environ["TPUCTL_STATE_DIR"]) / "journal" / "p" / ZONE
    folder.mkdir(parents=True)
    entries: list[dict[str, Any]] = [
        {"event": "create", "reason": EVIL, "spec": {"accelerator_type": EVIL, "runtime_version": EVIL, "tier": EVIL}},
        {"event": "state", "state": f"ODD{EVIL}", "health": EVIL, "id": EVIL},
        {"event": f"odd{EVIL}", "text": EVIL},
    ]
    lines = [json.dumps({"at": f"2026-03-01T10:0{at}:00Z", "by": EVIL, **one}) for at, one in enumerate(entries)]
    (folder / "trainer.jsonl").write_text("\n".join(lines) + "\n")
    (offline.folder / "train.log").write_text(f"a\x1b[2J b \u202e\nRuntimeError: No space left on device {EVIL}\n")
    return replace(offline, environ={**offline.environ, **environ})


def escaped_in(text: str) -> list[str]:
    """Return the lines with an unescaped invisible character, and added lines."""
    lines = OWN.sub("", text).split("\n")
    return [
        line
        for line in lines
        if not line.replace("\t", "").isprintable() or re.match(r"\s*(?:error|hint): pwned", line)
    ]


FORMS = {"pipe": (), "terminal": (), "json": ("-o", "json"), "yaml": ("-o", "yaml"), "name": ("-o", "name")}
READERS = {
    "list": ("list",),
    "status": ("status", "trainer", "odd"),
    "history": ("history", "trainer"),
    "types": ("types", "--zone", ZONE),
    "versions": ("versions", "--zone", ZONE),
    "explain": ("explain", "train.log"),
    "up-dry-run": ("up", "stopped", "--dry-run"),
    "down-dry-run": ("down", "trainer", "--dry-run"),
    "up-differs": ("up", "trainer", "--type", "v4-16"),
    "start": ("start", "stopped", "--timeout", "30s"),
    "wait": ("wait", "odd", "--timeout", "30s"),
}


# What changes nothing on stdout in another form is shown in two.
ROWS = [
    (command, form)
    for command in READERS
    for form in FORMS
    if form in {"pipe", "terminal"} or command in {"list", "status", "history", "types", "explain", "down-dry-run"}
]


@pytest.mark.parametrize(("command", "form"), ROWS)
def test_hostile_text_is_escaped_in_output(hostile: Console, command: str, form: str) -> None:
    out, err, _ = hostile(*READERS[command], *FORMS[form], terminal=form == "terminal")

    assert escaped_in(out + err) == []
    assert out + err != ""
    # What does not fit the API's types would be refused, and show nothing of what is tried here.
    assert "unexpected response" not in out + err


@pytest.mark.parametrize("arguments", [("wait", "odd", "--timeout", "30s"), ("start", "stopped", "--timeout", "5m")])
def test_hostile_text_adds_no_line_to_events(hostile: Console, arguments: tuple[str, ...]) -> None:
    out, _, _ = hostile(*arguments, "--events", "-")

    assert escaped_in(out) == []
    assert all(json.loads(line)["zone"] == ZONE for line in out.splitlines())


@pytest.mark.parametrize("shell", ["sh", "fish"])
def test_hostile_text_stays_quoted_in_shell_output(hostile: Console, shell: str) -> None:
    out, err, _ = hostile("env", "trainer", "-o", shell)

    assert escaped_in(out + err) == []
    if shell == "sh" and out:
        assert all(len(shlex.split(line)) == 2 for line in out.splitlines())
        done = subprocess.run(["/bin/sh", "-eu"], input=out, capture_output=True, text=True, timeout=10, check=False)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


TEXTS = {
    "sequence": ("\x1b[2J", "\\x1b[2J"),
    "line-end": ("a\nb", "a\\nb"),
    "return-and-tab": ("a\rb\tc", "a\\rb\\tc"),
    "c1": ("\x9b\x85", "\\x9b\\x85"),
    "bidirectional": ("\u202e\u2066\u200f\u061c", "\\u202e\\u2066\\u200f\\u061c"),
    "separators": ("\u2028\u2029", "\\u2028\\u2029"),
    "no-width": ("\u200b\ufeff", "\\u200b\\ufeff"),
    "beyond-the-plane": ("\U000e0041", "\\U000e0041"),
    "surrogate": ("\ud800", "\\ud800"),
    "harmless": ("Zoë 東京 \\n 🚀", "Zoë 東京 \\n 🚀"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_invisible_characters_are_escaped_and_json_decodes_to_the_same(name: str) -> None:
    text, shown = TEXTS[name]
    value = {text: [text, {"deep": f"a {text} b"}]}
    as_json, as_yaml = dump_printable_json(value), dump_printable_yaml(value)

    assert escape_unprintable(text) == shown
    assert json.loads(as_json) == value
    assert as_json.isprintable()
    assert as_yaml.replace("\n", "").isprintable()
    held = text.replace("\ud800", "\ufffd")
    assert yaml.safe_load(as_yaml) == {held: [held, {"deep": f"a {held} b"}]}


def test_colours_stay_and_other_sequences_are_escaped() -> None:
    assert (
        escape_except_colors("\x1b[31mred\x1b[0m \x1b[8mhidden \x1b[2J") == "\x1b[31mred\x1b[0m \\x1b[8mhidden \\x1b[2J"
    )


# Modules that write raw text: output of remote commands, the bytes of a bundle, `^C`, and what rich draws of escaped `Text`.
_RAW = {
    "support/bundle.py", "output/progress.py", "output/live.py",
    "workers/execution.py", "output/terminal.py",
}  # fmt: skip
_WRITES = re.compile(r"\b(?:print|secho|click\.echo)\(|std(?:out|err)(?:\.buffer)?\.write(?:lines)?\b")


# Programs of their own: the sandbox's servers, and what runs on workers.
_PROGRAMS = ("sandbox/", "ssh/agent/")


def client_modules() -> list[tuple[str, str]]:
    """Return the path and the text of each module that runs in the process of tpuctl."""
    source = Path(tpuctl.__file__).parent
    paths = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*.py"))}
    return [(name, path.read_text("utf-8")) for name, path in paths.items() if not name.startswith(_PROGRAMS)]


def test_only_the_terminal_writes() -> None:
    modules = client_modules()

    assert len(modules) > 100
    assert {name for name, text in modules if _WRITES.search(text)} - _RAW == set()


# A note or an error with `"a\nb"`. `note(*lines)` and `TpuctlError(message, details=lines)` make lines.
_LINE_END_WITHIN = re.compile(r"""(?:\.(?:note|warn)\((?!.*split\()|Error\()\s*f?"[^"\n]*\\n""")


def test_notes_and_errors_pass_their_lines_one_by_one() -> None:
    assert [name for name, text in client_modules() if _LINE_END_WITHIN.search(text)] == []
