"""Errors of options, arguments, variables and settings: the value, and a hint; no request is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces
from tpuctl.app.options import CLOUD_OPTIONS
from tpuctl.cli.tree import command_tree

UP = ("up", "demo", "--project", "proj-1", "--zone", "us-central2-b")

ASKS_NOTHING = "not needed: this command never asks"


@pytest.fixture
def bare(offline: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """The program on a machine without gcloud: what it needs from outside it cannot get."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return offline


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("lst",), "there is no command `tpuctl lst`", "did you mean `tpuctl list`?"),
        (("pause", "demo"), "there is no command `tpuctl pause`", "did you mean `tpuctl stop`?"),
        *(
            (
                tuple(line.split()),
                f"there is no command `tpuctl {line.split()[0]}`",
                f"did you mean `tpuctl {ours}`?",
            )
            for line, ours in (
                ("attach-disk demo --disk d", "update NODE --attach-disk DISK"),
                ("detach-disk demo --disk d", "update NODE --detach-disk DISK"),
                ("perform-maintenance demo", "maintenance NODE --perform"),
                ("queued-resources create demo", "up NODE --queue"),
                ("queued-resources list", "queue list"),
                ("queued-resources describe demo", "queue status"),
                ("queued-resources delete demo", "queue cancel"),
                ("queued-resources", "queue"),
                ("tpu-vm list", "list"),
                ("tpu-vm attach-disk demo", "update NODE --attach-disk DISK"),
                ("gcloud alpha compute tpus tpu-vm describe demo", "describe"),
                ("compute tpus queued-resources list", "queue list"),
                ("tpu-vm", "--help"),
            )
        ),
        (("scp", "a", "demo:", "--batch-size", "5"), "`tpuctl scp` has no option `--batch-size`", "use `--fanout`"),
        (("restart", "demo"), "there is no command `tpuctl restart`", "did you mean `tpuctl reset --mode restart`?"),
        (("frobnicate",), "there is no command `tpuctl frobnicate`", "see `tpuctl --help`"),
        (("--zoen", "x", "list"), "`tpuctl` has no option `--zoen`", "did you mean `--zone`?"),
        (("up", "demo", "--tpye", "v4-8"), "`tpuctl up` has no option `--tpye`", "did you mean `--type`?"),
        (("up", "demo", "--sport"), "`tpuctl up` has no option `--sport`", "did you mean `--spot`?"),
        (
            ("ls", "--format=json"),
            "`tpuctl list` has no option `--format`",
            "use `-o json`, `-o yaml` or `-o name`",
        ),
        (
            ("logs", "demo", "--name", "nightly"),
            "`tpuctl logs` has no option `--name`",
            "the job's name as the last argument, after the node's",
        ),
        (("up", "a", "--best-effort"), "`tpuctl up` has no option `--best-effort`", "use `--tier best-effort`"),
        (
            ("list", "--filter=state=READY"),
            "`tpuctl list` has no option `--filter`",
            "use `-l KEY=VALUE`, `--state READY`, `--older-than 2d`, `--mine`",
        ),
        (("types", "--filter=x"), "`tpuctl types` has no option `--filter`", "use `-o json` and jq"),
        (
            ("up", "a", "--unhealthy-after", "9m"),
            "`tpuctl up` has no option `--unhealthy-after`",
            "use `TPUCTL_UNHEALTHY_AFTER`, or the setting `unhealthy_after`",
        ),
        (("rm", "demo", "--force"), "`tpuctl delete` has no option `--force`", "use `--yes`"),
        (
            ("ssh", "demo", "--strict-host-key-checking=no"),
            "`tpuctl ssh` has no option `--strict-host-key-checking`",
            "not needed: host keys are always checked",
        ),
        (("wait", "demo", "--yes"), "`tpuctl wait` has no option `--yes`", ASKS_NOTHING),
        (("wait", "demo", "--force"), "`tpuctl wait` has no option `--force`", ASKS_NOTHING),
        (("--yes", "list"), "`tpuctl` has no option `--yes`", "put `--yes` after the command"),
        (("run", "--", "true"), "no nodes given", "name them, or use `-l KEY=VALUE`"),
        (("jobs", "--prune"), "no nodes given", "name them, or use `-l KEY=VALUE`"),
        (("stop", "demo", "-x"), "`tpuctl stop` has no option `-x`", "see `tpuctl stop --help`"),
        (("history",), "`tpuctl history` needs NODE", "see `tpuctl history --help`"),
        (("down",), "no nodes given", "name them, or use `-l KEY=VALUE`, `--mine` or `--all`"),
        (
            ("trust", "~nobody-here/x"),
            "`~nobody-here/x`: no such user",
            "write `./~nobody-here/x` for a file of that name",
        ),
        (("unstick", "a", "b"), "got unexpected extra argument (b)", "see `tpuctl unstick --help`"),
        (
            ("list", "-o", "jsn"),
            "invalid value for `--output` / `-o`: `jsn` is not one of `table`, `wide`, `tsv`, `json`, `yaml`, `name`",
            "did you mean `json`?",
        ),
        (
            ("wait", "demo", "--for", "helthy"),
            (
                "invalid value for `--for`: `helthy` is not one of `active`, `ready`, `healthy`, `ssh`, `startup`, `devices`, "
                "`stopped`, `gone`, `preempted`"
            ),
            "did you mean `healthy`?",
        ),
        (
            ("wait", "demo", "--timeout", "soon"),
            "invalid value for `--timeout`: `soon` is not a duration; write it like 90s, 30m, 2h or 1h30m",
            "see `tpuctl wait --help`",
        ),
        (
            ("up", "demo", "--max-restarts", "-1"),
            "invalid value for `--max-restarts`: -1 is not in the range x>=0",
            "see `tpuctl up --help`",
        ),
        (
            (*UP, "--type", "v5-16"),
            "`v5-16` may mean two types",
            "choose `v5litepod-16` (16 chips) or `v5p-16` (8 chips)",
        ),
        ((*UP, "--type", "v4"), "`v4` is a generation without a size", "name a size, such as `v4-8` (4 chips), "),
        (
            (*UP, "--type", "nonsense"),
            "`nonsense` is not an accelerator type",
            "types look like `v4-8`, `v5litepod-16` or `v6e-8`; see `tpuctl types --project proj-1`",
        ),
        ((*UP, "--type", "v4", "--topology", "2x2"), "`2x2` is not a topology of v4", "v4 has 3 dimensions, like"),
        (
            (*UP, "--type", "v4-8", "--topology", "2x2x2"),
            "type `v4-8` does not have the topology `2x2x2`",
            "`2x2x2` is `v4-16`; remove one of the options",
        ),
        ((*UP, "--topology", "2x2x2"), "`--topology` needs a generation", "add one, such as `--type v4`"),
        ((*UP, "--type", "v9-8"), "no runtime version is known for `v9-8`", "name one: `--version VERSION`"),
        ((*UP, "--type", "v4-8", "--spot", "--reserved"), "cannot combine `--spot` and `--reserved`", "choose one"),
        (
            (*UP, "--type", "v4-8", "--data-disk", "mode=rw"),
            "`--data-disk mode=rw` is not a disk",
            "write it like `source=projects/P/zones/Z/disks/D,mode=read-only`; modes: read-write, read-only",
        ),
        (
            (*UP, "--type", "v4-8", "--labels", "team"),
            "`--labels team` is not KEY=VALUE",
            "for a value with a comma choose another delimiter: `^:^KEY=a,b:OTHER=c`",
        ),
        *(
            (
                (*UP, "--type", "v4-8", option, value),
                f"a value of `{option}` number 1 has a comma, which begins the next key",
                (
                    "use `--startup-script FILE` or `--metadata-from-file KEY=FILE`, or choose another delimiter: "
                    "`--metadata '^:^KEY=a,b:OTHER=c'`"
                ),
            )
            for option, value in (
                ("--metadata", "startup-script=#! /bin/bash\necho hi, you\nA=1"),
                ("--metadata", "startup-script=#! /bin/bash\nA=1,B=2"),
                ("--metadata", "a=1,b=2\nc=3"),
                ("--metadata", "args=--lr=1,--steps=2"),
                ("--metadata", "a=x, y z=1"),
                ("--metadata", "a=x,y"),
                ("--metadata-from-file", "a=x,y"),
            )
        ),
        *(
            (
                (*UP, "--type", "v4-8", "--metadata", f"{key}=x"),
                "item 1 of `--metadata` number 1 has no valid key",
                "a key is up to 128 letters, digits, `_` and `-`",
            )
            for key in ("a b", "a.b", "ä", "k" * 129)
        ),
        (
            ("create", "demo", "--project", "p"),
            "no accelerator type given",
            "name one: `--type v4-8`; see `tpuctl types --project p`",
        ),
        (
            ("status", "Demo 1", "--project", "p"),
            "`Demo 1` is not a node name",
            (
                "a name is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a "
                "hyphen; did you mean `demo-1`?"
            ),
        ),
        (
            ("list", "--project", "p", "--zone", "us-central2"),
            "`us-central2` is a region, not a zone",
            "a zone ends with a letter, like `us-central2-b`; see `tpuctl types --project p`",
        ),
        (
            ("check", "--type", "v4-8", "--project", "p-1", "--zone", "us-central2-b", "--billing-project", "проект"),
            "`проект` is not a project id",
            "use the PROJECT_ID column of `gcloud projects list`, not the name",
        ),
        (
            ("list", "--project", "My Project"),
            "`My Project` is not a project id",
            "use the PROJECT_ID column of `gcloud projects list`, not the name",
        ),
        (
            ("list", "--project", "p", "--endpoint", "http://tpu.example.com"),
            (
                "invalid endpoint `http://tpu.example.com`: "
                "plain http is only allowed for this machine (localhost, 127.0.0.0/8, ::1)"
            ),
            "write it like `https://HOST` or `http://localhost:PORT`",
        ),
        (
            ("list", "--project", "p", "--endpoint", "garbage"),
            "invalid endpoint `garbage`: it is a single word, not a URL",
            "write it like `https://HOST` or `http://localhost:PORT`",
        ),
        (
            ("wait", "demo", "--timeout", "999999999d"),
            "invalid value for `--timeout`: `999999999d` is longer than 3650 days",
            "see `tpuctl wait --help`",
        ),
        (("jobs", "-l", ",", "--project", "p"), "`-l` names no label", "write `-l KEY=VALUE`"),
        (("list", "--zone", ""), "invalid value for `--zone`: `` is empty", "see `tpuctl list --help`"),
        (
            ("status", "\udcffx"),
            "invalid value for `[NODE...]`: `\\xffx` is not UTF-8 text",
            "see `tpuctl status --help`",
        ),
        (("explain", "OOM", "--node", "x y"), "`x y` is not a node name", "a name is up to 63"),
        (
            ("list", "--sandbox", "--endpoint", "https://tpu.example.com"),
            "cannot use `--endpoint` with the sandbox",
            "remove one of them",
        ),
    ],
)
def test_invalid_input_prints_the_value_and_a_hint(
    bare: Console, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    out, err, code = bare(*arguments)

    assert (out, code) == ("", 2)
    assert err.splitlines()[0] == f"error: {message}"
    assert err.splitlines()[1].startswith(f"  hint: {hint}")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("lst", "-o", "json"), "usage"),
        (("-o", "json", "list", "--bogus"), "usage"),
        (("history", "--output=json"), "usage"),
        (("wait", "demo", "--timeout", "soon", "-ojson"), "usage"),
        (("list", "-o", "json"), "setting"),
        (("status", "Demo 1", "--project", "p", "-o", "json"), "invalid_input"),
    ],
)
def test_error_in_json_is_one_object_on_stderr(bare: Console, arguments: tuple[str, ...], kind: str) -> None:
    out, err, code = bare(*arguments)

    (error,) = json.loads(err).values()
    assert (out, code, err.count("\n")) == ("", 2, 1)
    assert (error["kind"], error["exit_code"], error["id"]) == (kind, 2, kind.replace("_", "-"))
    assert set(error) == {"kind", "message", "exit_code", "hint", "id"}


def test_missing_project_lists_the_searched_sources(bare: Console) -> None:
    assert bare("list") == (
        "",
        (
            "error: no project is set; looked at --project, TPUCTL_PROJECT, CLOUDSDK_CORE_PROJECT, GOOGLE_CLOUD_PROJECT, "
            f"tpuctl.yaml (none here or above), {bare.environ['HOME']}/.config/tpuctl/config.yaml, "
            "core/project of gcloud's configuration\n"
            "  hint: pass `--project PROJECT`, set `TPUCTL_PROJECT`, run `tpuctl config set project PROJECT` "
            "or run `gcloud config set core/project PROJECT`\n"
            "  hint: try it without an account: `export TPUCTL_SANDBOX=1`\n"
        ),
        2,
    )


def test_missing_zone_lists_zones_that_offer_the_type(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--type", "v5p-8") == (
        "",
        (
            "error: no zone is set\n"
            "  hint: try all zones: `tpuctl up demo --zone any --type v5p-8`\n"
            "  hint: v5p-8 is offered in us-central1-a, us-east5-a, europe-west4-b\n"
            "  hint: pass `--zone ZONE`, or set one: `tpuctl config set zone ZONE`; other ways: `tpuctl help settings`\n"
        ),
        2,
    )
    assert sandbox.changes() == []


def test_missing_credentials_hint_at_the_login_command(bare: Console) -> None:
    out, err, code = bare("list", "--project", "p")

    assert (out, code) == ("", 4)
    assert err.startswith("error: no credentials found in GOOGLE_APPLICATION_CREDENTIALS, `")
    assert "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS" in err
    assert err.endswith("  hint: try it without an account: `export TPUCTL_SANDBOX=1`\n")


@both_faces
@pytest.mark.parametrize(
    ("status", "message", "remedy"),
    [
        (403, "Request had insufficient authentication scopes.", "scope"),
        (
            403,
            (
                "Cloud TPU API has not been used in project 1 before or it is disabled. Enable it by visiting "
                "https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1 then retry."
            ),
            "gcloud services enable tpu.googleapis.com",
        ),
        (403, "Permission 'tpu.nodes.list' denied on resource '//tpu.googleapis.com/projects/p'", "roles/tpu"),
        (401, "Request had invalid authentication credentials.", "gcloud auth login"),
    ],
)
def test_permission_error_prints_the_command_that_fixes_it(
    tpuctl: Console, sandbox: Sandbox, status: int, message: str, remedy: str
) -> None:
    sandbox.fault("http-error", status=status, message=message, count=0)

    out, err, code = tpuctl("list")

    assert (out, code) == ("", 4)
    assert remedy in "".join(line for line in err.splitlines() if line.startswith("  hint: "))


@pytest.mark.parametrize("line", ["down demo", "delete demo", "reset demo", "up demo --type v4-16 --replace"])
def test_confirmation_without_a_terminal_changes_nothing(tpuctl: Console, sandbox: Sandbox, line: str) -> None:
    sandbox.add_node("demo")

    for alone in (tpuctl(*line.split()), tpuctl(*line.split(), "--quiet"), tpuctl(*line.split(), stdin="y\n", CI="1")):
        assert (alone[0], alone[2]) == ("", 2)
        assert alone[1].splitlines()[-1] == ("  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)")
    assert sandbox.changes() == []


@both_faces
def test_type_not_offered_in_the_zone_is_checked_by_the_api(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("up", "demo", "--type", "v4-40", "--zone", "us-central2-b") == (
        "",
        (
            "error: us-central2-b does not offer `v4-40`\n"
            "  hint: did you mean `v4-32`? see `tpuctl types --zone us-central2-b`\n"
        ),
        2,
    )
    assert sandbox.changes() == []


def test_endpoint_without_a_server_is_reported(bare: Console) -> None:
    assert bare("list", "--project", "p", "--endpoint", "http://127.0.0.1:1") == (
        "",
        (
            "error: 127.0.0.1 cannot be reached: Connection refused\n"
            "  hint: no server listens at `http://127.0.0.1:1`, the endpoint set by `--endpoint`\n"
            "  hint: check the network, the proxy and the endpoint\n"
        ),
        1,
    )


def test_missing_credentials_with_an_endpoint_name_the_endpoint(bare: Console) -> None:
    _, err, code = bare("list", "--project", "p", TPUCTL_ENDPOINT="tpu.example")

    said = "  hint: API calls go to the endpoint `tpu.example` set by TPUCTL_ENDPOINT; an endpoint looks like `https://HOST`"
    assert (said in err.splitlines(), code) == (True, 4)


def test_refused_zone_suggests_a_similar_zone(tpuctl: Console, sandbox: Sandbox) -> None:
    for line in ("list", "types", "versions", "status demo"):
        _, err, code = tpuctl(*line.split(), "--zone", "us-cental2-b")
        hint = "  hint: tpuctl knows no TPUs in `us-cental2-b`: did you mean `us-central2-b`?"
        assert (err.splitlines()[1], code) == (hint, 4)
    assert "tpuctl knows no" not in tpuctl("list", "--zone", "us-central2-b")[1]


@pytest.mark.parametrize("line", ["", "config", "sandbox"])
def test_group_without_a_command_shows_its_help(bare: Console, line: str) -> None:
    out, err, code = bare(*line.split())

    assert (out, code) == ("", 2)
    assert err == bare(*line.split(), "--help")[0]


# Each option that names a file to read; FILE is replaced.
FILE_OPTIONS = [
    pytest.param(("up", "demo", "--type", "v4-8", "--startup-script", "FILE"), id="startup-script"),
    pytest.param(("up", "demo", "--type", "v4-8", "--setup-script", "FILE"), id="setup-script"),
    pytest.param(("up", "demo", "--type", "v4-8", "--metadata-from-file", "key=FILE"), id="metadata-from-file"),
    pytest.param(("run", "demo", "--env-file", "FILE", "--", "true"), id="env-file"),
    pytest.param(("check", "--ai-platform", "FILE"), id="ai-platform"),
    pytest.param(("sandbox", "seed", "FILE"), id="seed"),
    pytest.param(("sandbox", "scenario", "FILE"), id="scenario"),
    pytest.param(("ssh-config", "--file", "FILE"), id="ssh-config"),
]


@pytest.mark.parametrize("line", FILE_OPTIONS)
def test_missing_or_too_large_file_is_refused(tpuctl: Console, sandbox: Sandbox, line: tuple[str, ...]) -> None:
    (tpuctl.folder / "folder").mkdir()
    (tpuctl.folder / "sparse").touch()
    os.truncate(tpuctl.folder / "sparse", 10 * 1024**3)

    said = {}
    for name in ("folder", "/dev/zero", "sparse"):
        out, err, code = tpuctl(*(word.replace("FILE", name) for word in line), TPUCTL_ZONE="us-central2-b")
        said[name] = (out, code, err.splitlines()[0].partition("` ")[2].partition(";")[0])

    assert said == {
        "folder": ("", 2, "cannot be read: it is a directory"),
        "/dev/zero": ("", 2, "cannot be read: it is a device or a socket"),
        "sparse": ("", 2, "is too large: 10 GiB"),
    }
    assert sandbox.changes() == []


def test_startup_script_may_have_the_size_of_a_metadata_value(tpuctl: Console, sandbox: Sandbox) -> None:
    script = tpuctl.folder / "script"
    up = ("up", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait", "--startup-script", "script")

    script.write_text("#" * (256 * 1024 + 1))
    assert tpuctl(*up)[1:] == (
        "error: `--startup-script script` is too large: 256 KiB; the limit is 256 KiB\n",
        2,
    )


def test_file_that_is_not_utf8_is_refused_with_the_line(tpuctl: Console, sandbox: Sandbox) -> None:
    (tpuctl.folder / "latin").write_bytes(b"a\nb\xe9\n")

    for line in (("update", "demo", "--metadata-from-file", "key=latin"), ("sandbox", "seed", "latin")):
        sandbox.add_node("demo")
        _, err, code = tpuctl(*line)
        assert (err.endswith("cannot be read: not UTF-8 text: line 2, byte 2 (0xe9)\n"), code) == (True, 2)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        pytest.param("TPUCTL_ZONE", "\udcff", "`TPUCTL_ZONE` is not UTF-8 text: `\\xff`", id="bytes"),
        pytest.param("HOME", "/home/\udcff", "`HOME` is not UTF-8 text: `/home/\\xff`", id="bytes-in-home"),
        pytest.param(
            "TPUCTL_STATE_DIR", "{file}", "`TPUCTL_STATE_DIR={file}`: `{file}` is not a directory", id="state"
        ),
        pytest.param(
            "XDG_STATE_HOME", "{file}/x", "`XDG_STATE_HOME={file}/x`: `{file}` is not a directory", id="xdg-state"
        ),
        pytest.param("XDG_CONFIG_HOME", "{file}", "cannot read {file}/tpuctl/config.yaml: Not a dir", id="xdg-config"),
        pytest.param("TPUCTL_STATE_DIR", "x" * 300, "is not a directory: file name too long", id="long"),
        pytest.param("_TPUCTL_COMPLETE", "nonsense", "`_TPUCTL_COMPLETE` is `nonsense`", id="completion"),
        pytest.param("_TPUCTL_COMPLETE", "bash_complete", "`_TPUCTL_COMPLETE` is `bash_complete`", id="no-words"),
        pytest.param("_TPUCTL_COMPLETE", "\udcff", "`_TPUCTL_COMPLETE` is `\\xff`", id="completion-bytes"),
    ],
)
def test_invalid_environment_variable_is_named(offline: Console, variable: str, value: str, message: str) -> None:
    file = offline.folder / "file"
    file.touch()
    variables = {"TPUCTL_SANDBOX": "1", "TPUCTL_STATE_DIR": "", variable: value.format(file=file)}

    out, err, code = replace(offline, environ={**offline.environ, **variables})("list")

    assert (out, code) == ("", 2)
    assert message.format(file=file) in err.splitlines()[0]


@pytest.mark.parametrize("login", ["-oProxyCommand=x", "ada lovelace", "ada@host", "ada:ssh-rsa AAAA x", "../ada"])
def test_invalid_login_name_is_refused(tpuctl: Console, sandbox: Sandbox, login: str) -> None:
    sandbox.add_node("demo")

    _, err, code = tpuctl("--user", login, "run", "demo", "--", "true")

    assert (err.splitlines()[0], code) == (f"error: `{login}` is not a login name", 2)
    assert sandbox.changes() == []


DIGITS = "9" * 5000  # more than Python reads as a number


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param(("check", f"v4-{DIGITS}"), 2, id="type"),
        pytest.param(("types", f"v4-{DIGITS}"), 2, id="types"),
        pytest.param(("check", "v4-8", "--version", f"tpu-vm-tf-2.{DIGITS}.0"), 0, id="version"),
        pytest.param(("check", "--ai-platform", "job.yaml"), 9, id="ai-platform"),
        pytest.param(("kill", "--signal", DIGITS, "demo"), 2, id="signal"),
        pytest.param(("ssh", "demo", "--batch-size", DIGITS, "--", "true"), 2, id="batch-size"),
    ],
)
def test_number_with_thousands_of_digits_is_refused(tpuctl: Console, line: tuple[str, ...], code: int) -> None:
    tpu = f"acceleratorConfig: {{type: TPU_V3, count: {DIGITS}}}"
    job = f"trainingInput: {{scaleTier: CUSTOM, workerType: cloud_tpu, workerCount: 1, workerConfig: {{{tpu}}}}}\n"
    (tpuctl.folder / "job.yaml").write_text(job)

    assert tpuctl(*line)[2] == code


def test_explain_takes_a_long_word_as_a_message(offline: Console) -> None:
    _, err, code = offline("explain", "x" * 300)

    assert (err.splitlines()[0], code) == ("warning: no known message in this line", 1)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        pytest.param(
            "v99-8",
            "`v99-8` is neither a node nor an accelerator type that tpuctl knows",
            "types of that size are `v2-8`, `v3-8`, `v4-8`, `v5litepod-8`, `v5p-8`, `v6e-8`; see `tpuctl types`",
            id="unknown-generation",
        ),
        pytest.param(
            "v5e-16",
            "no node `v5e-16`",
            "as a type it is `v5litepod-16`: `tpuctl check v5litepod-16`",
            id="spelling",
        ),
    ],
)
def test_check_of_a_mistyped_type_suggests_the_nearest(tpuctl: Console, name: str, message: str, hint: str) -> None:
    assert tpuctl("check", name) == ("", f"error: {message}\n  hint: {hint}\n", 2)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if below := command.get_command(context, name):
            yield from commands(below, (*path, name))


def test_option_with_bytes_is_refused_without_a_traceback(offline: Console) -> None:
    wrong = []
    for path, command in commands(command_tree()):
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag and param.name not in CLOUD_OPTIONS:
                arguments = ["demo" for one in command.params if isinstance(one, click.Argument) and one.required]
                _, err, code = offline(*path, *arguments, param.opts[0], "\udcff")
                if code != 2 or "\udcff" in err.replace("'\udcff'", ""):
                    wrong.append((*path, param.opts[0], code, err))

    assert wrong == []
