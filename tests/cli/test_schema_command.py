"""`tpuctl schema`: the JSON Schemas of all outputs. `tests/json_contract.py` holds the output of all tests against them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.conftest import Console, Sandbox
from tests.json_contract import check_documents
from tpuctl.app.state_paths import journal_folder
from tpuctl.check.colocation import Relation
from tpuctl.check.findings import Level
from tpuctl.cli.output_schemas import Schema, load_definitions, load_outputs, output_schema
from tpuctl.cli.tree import command_tree
from tpuctl.clock import ManualClock
from tpuctl.decoding import json_paths
from tpuctl.errors import ExitCode
from tpuctl.explain.messages import MessageOrigin
from tpuctl.models.billing import Billing, Precision
from tpuctl.models.events import EventKind
from tpuctl.models.node import Tier
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.garbage import GarbageReason
from tpuctl.nodes.garbage_removal import RemovalOutcome
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.journal_entries import EntryFields
from tpuctl.workers.runner import StopReason
from tpuctl.workers.worker_session import WorkerOutcome


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


def own_objects(schema: Any, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield each part of a schema of ours that describes an object, with its place."""
    if isinstance(schema, list):
        for number, entry in enumerate(schema):
            yield from own_objects(entry, f"{path}[{number}]")
    elif isinstance(schema, dict):
        if "properties" in schema:
            yield path, schema
        for key, value in schema.items():
            yield from own_objects(value, f"{path}.{key}")


OBJECTS = dict(own_objects({**load_outputs(), **load_definitions()}))
# With fields of the API, of other versions, or with the names of variables and packages.
OPEN = {".node", ".request", ".journalEntry", ".schema.anyOf[1]"}


def test_every_command_with_a_format_has_a_schema() -> None:
    with_format = {
        name for name, command in leaves(command_tree()) if "output" in {parameter.name for parameter in command.params}
    }

    # With `watch` it is the form of an error: all that it reports are events.
    assert set(load_outputs()) == (with_format - {"watch"}) | {"env", "events", "error"}


def test_watch_has_a_schema_of_its_events_only(offline: Console) -> None:
    assert offline("schema", "watch") == (
        "",
        "error: `tpuctl watch` has no JSON output\n  hint: its events have a schema: `tpuctl schema watch --events`\n",
        2,
    )
    assert offline("schema", "watch", "--events") == offline("schema", "events")


def test_journal_entry_has_all_fields_of_the_journal(offline: Console) -> None:
    assert set(json_paths(EntryFields).values()) <= load_definitions()["journalEntry"]["properties"].keys()

    # Each output of a test is held against its schema.
    node, time = NodeName("acme", "us-central2-b", "trainer"), "2026-11-23T05:00:00Z"
    lines: list[dict[str, Any]] = [
        {"event": "race", "race": "r", "zones": ["us-central2-b", "us-east1-d"]},
        {"event": "race", "race": "r", "winner": "us-central2-b", "created": time},
        {"event": "race", "race": "r", "over": True},
        {"event": "guard", "ok": True, "text": "the guard deletes it", "until": time},
        {"event": "note", "refused": "stop", "text": "cannot stop it"},
        {"event": "note", "unsent": "delete", "text": "the delete was not sent"},
        {"event": "setup", "ok": True, "script": "pip install jax"},
    ]
    for line in lines:
        Journal(journal_folder(offline.environ, sandbox=False)).append(node, at=ManualClock().now(), **line)

    out, _, code = offline("history", "us-central2-b/trainer", "--project", "acme", "-o", "json")

    shown = [{key: value for key, value in entry.items() if key not in {"at", "by"}} for entry in json.loads(out)]
    assert (shown, code) == (lines, 0)


@pytest.mark.parametrize("name", load_outputs())
def test_schema_of_a_command_is_valid_and_complete(offline: Console, name: str) -> None:
    out, err, code = offline("schema", *name.split())
    schema = json.loads(out)

    Draft202012Validator.check_schema(schema)
    assert (err, code) == ("", 0)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://tpuctl.github.io/tpuctl/schemas/v1/{name.replace(' ', '-')}.json"
    used = {part.split('"')[0] for part in out.split('"#/$defs/')[1:]}
    assert used == schema["$defs"].keys()


def test_objects_are_closed_and_describe_each_property() -> None:
    is_open = {path for path, schema in OBJECTS.items() if schema.get("additionalProperties", True) is True}
    undescribed = [
        f"{path}.{name}"
        for path, schema in OBJECTS.items()
        for name, value in schema["properties"].items()
        if not (value.get("description") or load_definitions()[value["$ref"].rpartition("/")[2]].get("description"))
    ]
    not_there = [path for path, schema in OBJECTS.items() if not {*schema["required"]} <= schema["properties"].keys()]

    assert is_open == OPEN
    assert undescribed == []
    assert not_there == []


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (load_definitions()["tier"], Tier),
        (load_definitions()["outcome"], WorkerOutcome),
        (load_definitions()["relation"], Relation),
        (load_definitions()["amount"]["properties"]["precision"], Precision),
        (load_definitions()["billing"]["properties"]["billed"], Billing),
        (load_definitions()["finding"]["properties"]["level"], Level),
        (load_definitions()["verdict"]["properties"]["where"], MessageOrigin),
        (load_definitions()["planStep"]["properties"]["step"], Verb),
        (load_definitions()["runResult"]["properties"]["stopped"], StopReason),
        (load_definitions()["garbage"]["properties"]["outcome"], RemovalOutcome),
        (load_definitions()["garbage"]["properties"]["reason"], GarbageReason),
    ],
    ids=[
        "tier", "outcome", "relation", "precision", "billed", "level", "where", "step", "stopped", "removal", "reason"
    ],
)  # fmt: skip
def test_words_of_a_schema_are_those_of_the_code(definition: Schema, words: type[StrEnum]) -> None:
    assert {word for word in definition["enum"] if word is not None} == {str(word) for word in words}


def test_exit_codes_of_errors_are_those_of_the_code() -> None:
    assert load_definitions()["failure"]["properties"]["exit_code"]["enum"] == [int(code) for code in ExitCode][1:]


def test_events_have_a_schema_for_each_kind() -> None:
    definitions = output_schema("events")["$defs"].values()
    kinds = [schema["properties"]["event"]["const"] for schema in definitions if "event" in schema["properties"]]

    assert sorted(kinds) == sorted(EventKind)


@pytest.mark.parametrize(
    ("command", "path", "value"),
    [
        (("list",), [0, "kind"], "tpu"),
        (("list",), [0, "state"], 7),
        (("list",), [0, "chips"], "4"),
        (("list",), [0, "billing", "perHour", "dollars"], "12.88"),
        (("list",), [0, "billing", "color"], "red"),
        (("status", "demo"), [0, "tier"], "cheap"),
        (("status", "demo"), [0, "networkEndpoints"], "10.0.0.2"),
        (("cost",), ["total", "soFar"], 0),
        (("cost",), ["nodes", 0, "colour"], "red"),
        (("stop", "demo", "--dry-run"), [0, "step"], "pause"),
        (("history", "demo"), [0, "at"], None),
    ],
    ids=[
        "kind", "api-field", "text-for-a-number", "nested", "new-in-nested", "unknown-word", "api-list", "number-for-object",
        "new-field", "step", "null",
    ],
)  # fmt: skip
def test_changed_output_does_not_fit_its_schema(
    tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...], path: list[Any], value: Any
) -> None:
    sandbox.add_node("demo", state="READY", networkEndpoints=[{"ipAddress": "10.0.0.2"}])
    tpuctl("wait", "demo", "--for", "ready")
    tpuctl("extend", "demo", "2h")
    out = tpuctl(*command, "-o", "json")[0]
    changed = copy.deepcopy(json.loads(out))
    *above, last = path
    place = changed
    for key in above:
        place = place[key]
    place[last] = value

    check_documents(command[0], out)
    with pytest.raises(AssertionError, match=r"not as `tpuctl schema"):
        check_documents(command[0], json.dumps(changed))


def test_list_of_outputs_has_the_order_of_help(offline: Console) -> None:
    out, err, code = offline("schema")

    assert (err, code) == ("", 0)
    lines = dict(line.split("\t") for line in out.splitlines())
    assert list(lines)[:3] == ["up", "down", "list"]
    assert list(lines)[-2:] == ["events", "error"]
    watched = "with `--watch` one array for each change."
    assert lines["list"] == f"Nodes, and the queued resources that wait for their nodes; {watched}"
    assert offline("schema", "-o", "name")[0].split("\n")[:-1] == list(lines)
    assert json.loads(offline("schema", "-o", "json")[0])[2] == {"command": "list", "description": lines["list"]}


def test_schema_in_yaml_is_the_same(offline: Console) -> None:
    written = offline("schema", "queue", "list", "-o", "yaml")[0]

    assert yaml.safe_load(written) == json.loads(offline("schema", "queue", "list", "-o", "json")[0])
    assert "&id" not in written


def test_schema_keeps_the_form_of_metadata(offline: Console) -> None:
    """Only values of metadata are masked, not their schema."""
    schema = json.loads(offline("schema", "list")[0])

    assert schema["$defs"]["tpuV2Node"]["properties"]["metadata"]["additionalProperties"] == {"type": "string"}


@pytest.mark.parametrize(
    ("words", "id_"),
    [
        (("ls",), "list"),
        (("up", "--events"), "events"),
        (("--events",), "events"),
        (("events",), "events"),
        (("error",), "error"),
        (("ssh-key", "show"), "ssh-key-show"),
    ],
    ids=["alias", "of-a-command", "alone", "by-name", "error", "two-words"],
)
def test_schema_is_found_by_name(offline: Console, words: tuple[str, ...], id_: str) -> None:
    assert offline("schema", *words, "-o", "name") == (
        f"https://tpuctl.github.io/tpuctl/schemas/v1/{id_}.json\n", "", 0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("lst",), "there is no command `lst`", "did you mean `tpuctl schema list`?"),
        (("zzz",), "there is no command `zzz`", "list the commands: `tpuctl schema`"),
        (("down", "demo"), "there is no command `down demo`", "did you mean `tpuctl schema down`?"),
        (("queue",), "`tpuctl queue` has no JSON output", "did you mean `tpuctl schema queue list`?"),
        (("logs",), "`tpuctl logs` has no JSON output", "list the commands: `tpuctl schema`"),
        (("list", "--events"), "`tpuctl list` has no `--events`", "see what events are: `tpuctl schema events`"),
    ],
    ids=["mistyped", "unknown", "name-of-a-node", "group", "without-json", "without-events"],
)
def test_schema_of_something_else_is_a_usage_error(
    offline: Console, words: tuple[str, ...], message: str, hint: str
) -> None:
    assert offline("schema", *words) == ("", f"error: {message}\n  hint: {hint}\n", ExitCode.USAGE)


def test_schema_needs_no_valid_settings(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("zone: [\n")

    out, err, code = offline("schema", "list")

    assert (json.loads(out)["title"], err, code) == ("tpuctl list", "", 0)
