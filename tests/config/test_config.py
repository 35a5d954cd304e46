"""`tpuctl config`: settings with their sources, and errors in configuration files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Console


def user_file(console: Console) -> Path:
    return Path(console.environ["HOME"]) / ".config" / "tpuctl" / "config.yaml"


def test_show_prints_each_value_with_its_source(offline: Console) -> None:
    offline("config", "set", "version", "img")
    offline("config", "set", "metadata", "token=geheim")
    (offline.folder / "tpuctl.yaml").write_text("# ours\ntype: v4-8\nversion: other\n")
    configuration = offline.folder / "gcloud" / "configurations" / "config_work"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("[core]\nproject = from-gcloud\naccount = ada@example.com\n[compute]\nzone = us-east5-a\n")
    environ = {"CLOUDSDK_CONFIG": str(offline.folder / "gcloud"), "CLOUDSDK_ACTIVE_CONFIG_NAME": "work"}

    out, err, code = offline(
        "config", "show", "--zone", "us-central2-b", terminal=True, NO_COLOR="1", TPUCTL_TIMEOUT="2h", TPUCTL_TIMESTAMPS="auto",
        CLOUDSDK_CONFIG=environ["CLOUDSDK_CONFIG"], CLOUDSDK_ACTIVE_CONFIG_NAME="work",
    )  # fmt: skip

    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert (err, code) == ("", 0)
    assert rows["repair"] == ["restart", "default"]
    rows = {key: row for key, row in rows.items() if row[1] != "default"}
    assert rows == {
        "KEY": ["VALUE", "SOURCE"],
        "timestamps": ["auto", "TPUCTL_TIMESTAMPS"],
        "project": ["from-gcloud", "gcloud configuration `work`"],
        "zone": ["us-central2-b", "--zone"],
        "type": ["v4-8", "tpuctl.yaml line 2"],
        "version": ["other", "tpuctl.yaml line 3"],
        "metadata": ["(set,", f"not shown)  {user_file(offline)} line 2"],
        "timeout": ["2h", "TPUCTL_TIMEOUT"],
        "account": ["ada@example.com", "gcloud configuration `work`"],
        "identity": ["ada@example.com", "gcloud's login: gcloud configuration `work`"],
    }


def test_show_prints_one_value_for_a_script(offline: Console) -> None:
    assert offline("config", "show", "timeout", "-o", "name") == ("30m\n", "", 0)
    assert offline("config", "show", "zone") == ("zone\t\tnot set\n", "", 0)
    assert json.loads(offline("config", "show", "zone", "-o", "json", TPUCTL_ZONE="us-east5-a")[0]) == [
        {"key": "zone", "value": "us-east5-a", "source": "TPUCTL_ZONE"}
    ]


def test_show_in_json_has_typed_values(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("labels: {team: vision, run: '7'}\ntags: [web, db]\nmax_restarts: 3\n")

    shown = {row["key"]: row["value"] for row in json.loads(offline("config", "show", "-o", "json", "--all")[0])}

    keys = ("labels", "tags", "max_restarts", "sandbox", "timeout", "zone")
    assert [shown[key] for key in keys] == [{"team": "vision", "run": "7"}, ["web", "db"], 3, False, "30m", None]
    assert offline("config", "show", "labels", "-o", "name")[0] == "team=vision,run=7\n"
    assert offline("config", "show", "tags")[0] == "tags\tweb,db\ttpuctl.yaml line 2\n"
    assert offline("config", "show", "max_restarts", "-o", "name", TPUCTL_MAX_RESTARTS="many")[0] == "many\n"


@pytest.mark.parametrize("form", ["table", "json", "yaml", "name"])
def test_show_hides_secrets(offline: Console, form: str) -> None:
    offline("config", "set", "metadata", "token=geheim")

    assert "geheim" not in "".join(map(str, offline("config", "show", "--all", "-o", form)))
    assert "geheim" not in "".join(map(str, offline("config", "show", "metadata", "-o", form)))


def test_set_and_unset_keep_the_rest_of_the_file(offline: Console) -> None:
    ours = offline.folder / "tpuctl.yaml"
    ours.write_text("# the team's\ntype: v4-8  # cheap\n")

    assert offline("config", "set", "zone", "us-central2-b", "--here") == ("", f"`zone` is set in {ours}\n", 0)
    assert ours.read_text() == "# the team's\ntype: v4-8  # cheap\nzone: us-central2-b\n"
    assert offline("config", "unset", "zone", "--here") == ("", f"`zone` was removed from {ours}\n", 0)
    assert offline("config", "unset", "zone", "--here") == ("", f"`zone` is not set in {ours}\n", 0)
    assert ours.read_text() == "# the team's\ntype: v4-8  # cheap\n"
    assert offline("config", "set", "zone", "us-east5-a") == ("", f"`zone` is set in {user_file(offline)}\n", 0)
    assert user_file(offline).stat().st_mode & 0o777 == 0o600


def test_path_prints_files_in_order_of_precedence(offline: Console) -> None:
    assert offline("config", "path") == (f"{user_file(offline)}\n", "", 0)
    (offline.folder / "tpuctl.yaml").write_text("")
    assert offline("config", "path") == (f"{offline.folder}/tpuctl.yaml\n{user_file(offline)}\n", "", 0)
    assert json.loads(offline("config", "path", "-o", "json")[0]) == [
        {"path": f"{offline.folder}/tpuctl.yaml", "kind": "project file", "exists": True},
        {"path": str(user_file(offline)), "kind": "user file", "exists": False},
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "zoen"), "error: `zoen` is not a setting\n  hint: did you mean `zone`?\n"),
        (("set", "zoen", "a"), "error: `zoen` is not a setting\n  hint: did you mean `zone`?\n"),
        (
            ("set", "sandbox", "true"),
            (
                "error: {user}: `sandbox: true` is never read from the user file\n  hint: pass `--sandbox`, "
                "set `TPUCTL_SANDBOX=1`, or put it in the `tpuctl.yaml` of a project\n"
            ),
        ),
        (
            ("set", "timeout", "soon"),
            "error: {user}: `timeout` is `soon`: it must be a duration like 90s, 30m, 2h or 1h30m\n",
        ),
        (
            ("set", "endpoint", "https://x.example", "--here"),
            (
                "error: {project}: `endpoint` is never read from a project file\n  hint: use `--endpoint`, "
                "`TPUCTL_ENDPOINT` or the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)\n"
            ),
        ),
        (("set", "zone"), "error: `tpuctl config set` needs VALUE\n  hint: see `tpuctl config set --help`\n"),
        (
            ("set", "zone", "us-cental2-b"),
            (
                "error: tpuctl knows no TPUs in `us-cental2-b`: nothing was set\n  hint: did you mean `us-central2-b`?\n"
                "  hint: for a new zone write `zone: us-cental2-b` to {user}\n"
            ),
        ),
        (
            ("set", "type", "v4-9"),
            "error: `v4-9` is not an accelerator type\n  hint: did you mean `v4-8`?\n",
        ),
        (
            ("set", "project", "My Project"),
            (
                "error: `My Project` is not a project id\n"
                "  hint: use the PROJECT_ID column of `gcloud projects list`, not the name\n"
            ),
        ),
        (
            ("set", "endpoint", "garbage"),
            (
                "error: invalid endpoint `garbage`: it is a single word, not a URL\n"
                "  hint: write it like `https://HOST` or `http://localhost:PORT`\n"
            ),
        ),
        (
            ("set", "service_account", "trainer"),
            (
                "error: `trainer` is not a service account\n"
                "  hint: write it like `NAME@PROJECT.iam.gserviceaccount.com`\n"
            ),
        ),
        (
            ("set", "lease", "bucket/prefix"),
            ("error: `bucket/prefix` is not a Cloud Storage URL\n  hint: write it like `gs://BUCKET/PREFIX`\n"),
        ),
        (
            ("set", "grants", "zone=us-central2-b,type=v4,tier=spot,count=8", "--here"),
            (
                "error: {project}: `grants` is never read from a project file\n  hint: use `TPUCTL_GRANTS` or the user file "
                "($XDG_CONFIG_HOME/tpuctl/config.yaml)\n"
            ),
        ),
        (
            ("set", "grants", "zone=us-central2-b,type=v4,tier=free,count=8"),
            (
                "error: {user}: `grants` is `zone=us-central2-b,type=v4,tier=free,count=8`: `tier` is `free`: it must be one "
                "of on-demand, spot, preemptible\n"
            ),
        ),
        (
            ("set", "data_buckets", "gs://images,my-data"),
            "error: `my-data` is not a bucket\n  hint: did you mean `gs://my-data`?\n",
        ),
        (
            ("set", "repair", "restat"),
            (
                "error: {user}: `repair` is `restat`: it must be one of none, reboot, restart, recreate; "
                "did you mean `restart`?\n"
            ),
        ),
        (("sho",), "error: there is no command `tpuctl config sho`\n  hint: did you mean `tpuctl config show`?\n"),
    ],
)
def test_set_of_an_invalid_value_is_refused(offline: Console, arguments: tuple[str, ...], error: str) -> None:
    places = {"user": user_file(offline), "project": offline.folder / "tpuctl.yaml"}

    assert offline("config", *arguments) == ("", error.format(**places), 2)
    assert not user_file(offline).exists()
    assert not (offline.folder / "tpuctl.yaml").exists()


def test_set_of_an_unknown_zone_warns(offline: Console) -> None:
    assert offline("config", "set", "zone", "us-central2-c") == (
        "",
        (
            f"`zone` is set in {user_file(offline)}\n"
            "warning: tpuctl knows no TPUs in `us-central2-c`, but in `us-central2-b`; `tpuctl types` asks the API\n"
        ),
        0,
    )
    assert offline("config", "set", "zone", "mars-north1-a")[1:] == (f"`zone` is set in {user_file(offline)}\n", 0)
    assert offline("config", "set", "type", "v9-8")[2] == 0
    assert offline("config", "set", "service_account", "default")[2] == 0
    assert offline("config", "set", "network", "projects/host/global/networks/n-1")[2] == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("type: v4-8\nzoen: x\n", "line 2: unknown key `zoen`\n  hint: did you mean `zone`?\n"),
        ("zone: [a\n", "line 2 column 1: not valid YAML: did not find expected ',' or ']'\n"),
        ("zone: a\nzone: b\n", "line 2: duplicate key `zone`, first in line 1\n"),
        ("timeout: soon\n", "line 1: `timeout` is `soon`: it must be a duration like 90s, 30m, 2h or 1h30m\n"),
        ("- a\n", "line 1: expected `key: value` lines\n  hint: an example line: `zone: us-central2-b`\n"),
        ("zone:\n  a: b\n", "line 1: `zone`: this is a mapping; it must be one value\n"),
        (
            "sandbox: false\n",
            (
                "line 1: `sandbox: false` is never read from a project file\n"
                "  hint: set `TPUCTL_SANDBOX=0`; without a setting for the sandbox, commands use the real cloud\n"
            ),
        ),
        (
            "endpoint: https://x.example\n",
            (
                "line 1: `endpoint` is never read from a project file\n  hint: use `--endpoint`, `TPUCTL_ENDPOINT` "
                "or the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)\n"
            ),
        ),
    ],
)
def test_broken_project_file_is_reported_with_line_and_hint(offline: Console, text: str, error: str) -> None:
    ours = offline.folder / "tpuctl.yaml"
    ours.write_text(text)

    for command in (("list",), ("up", "demo"), ("config", "show")):
        assert offline(*command) == ("", f"error: {ours} {error}", 2)
    in_json = json.loads(offline("list", "-o", "json")[1])["error"]
    assert (in_json["kind"], in_json["exit_code"]) == ("setting", 2)
    # Commands without settings work.
    assert offline("config", "path")[2] == offline("--version")[2] == offline("list", "--help")[2] == 0


def test_sandbox_in_the_user_file_is_refused(offline: Console) -> None:
    user_file(offline).parent.mkdir(parents=True)
    user_file(offline).write_text("sandbox: true\n")

    assert offline("down", "demo", "--yes") == (
        "",
        (
            f"error: {user_file(offline)} line 1: `sandbox: true` is never read from the user file\n"
            "  hint: pass `--sandbox`, set `TPUCTL_SANDBOX=1`, or put it in the `tpuctl.yaml` of a project\n"
        ),
        2,
    )


def test_sandbox_in_the_project_file_is_used(offline: Console) -> None:
    offline("config", "set", "sandbox", "true", "--here")

    assert offline("list", "-o", "json") == ("[]\n", "sandbox: nothing here is real, and nothing is billed\n", 0)
    assert offline("config", "show")[0].splitlines()[-1] == "identity\tnone\tthe sandbox needs no account"


def test_show_prints_grants_as_written(offline: Console) -> None:
    text = "zone=us-central2-b,type=v4,tier=spot,count=8;zone=us-central1-f,type=v2-8,tier=on-demand,count=5"

    assert offline("config", "set", "grants", text)[2] == 0
    assert offline("config", "show", "grants", "-o", "name") == (f"{text}\n", "", 0)
    assert json.loads(offline("config", "show", "grants", "-o", "json")[0]) == [
        {
            "key": "grants",
            "value": [
                {"zone": "us-central2-b", "type": "v4", "tier": "spot", "count": "8"},
                {"zone": "us-central1-f", "type": "v2-8", "tier": "on-demand", "count": "5"},
            ],
            "source": f"{user_file(offline)} line 1",
        }
    ]


WRITTEN = """\
# Settings of tpuctl for this folder and those below. Flags and TPUCTL_* variables override them;
# `tpuctl config show` says where each value comes from, `tpuctl help settings` lists all settings.

# Project of the nodes.
project: my-own-project

# Zone of the nodes. `zones: any` tries all of them for a new node.
zones: [any]

# Accelerator type: generation and size. `tpuctl types` lists them.
type: v5litepod-8

# How a node is bought: on-demand, spot, preemptible or reserved.
# tier: spot

# Buckets that programs read and write; they must be near the zone.
# buckets: [gs://my-bucket]
"""


def test_init_writes_a_commented_trusted_file(offline: Console) -> None:
    path = offline.folder / "tpuctl.yaml"

    made = offline("config", "init", "--zone", "any", "--type", "v5litepod-8", CLOUDSDK_CORE_PROJECT="my-own-project")

    assert made == ("", f"wrote {path}\nnext: `tpuctl check`, then `tpuctl up NODE`\n", 0)
    assert path.read_text() == WRITTEN
    assert offline("trust", "--list")[0] == f"{path}\ttrusted\n"
    assert offline("config", "show", "project", "-o", "name") == ("my-own-project\n", "", 0)


def test_init_asks_with_what_is_known_until_an_answer_is_valid(offline: Console) -> None:
    answers = "\nus-central2-b\nv4-9x\nv4-8\nspot\ngs://data/a,gs://data/b\n"

    out, err, code = offline("config", "init", stdin=answers, terminal=True, CLOUDSDK_CORE_PROJECT="my-own-project")

    assert (out, code) == ("", 0), err
    assert "project [my-own-project]: " in err
    assert "type [none; such as v4-8]: " in err
    assert "error: " in err
    lines = [line for line in (offline.folder / "tpuctl.yaml").read_text().splitlines() if line and line[0] != "#"]
    assert lines == [
        "project: my-own-project", "zone: us-central2-b", "type: v4-8", "tier: spot",
        "buckets: [gs://data/a, gs://data/b]",
    ]  # fmt: skip


def test_init_keeps_a_file_unless_the_user_agrees(offline: Console) -> None:
    path = offline.folder / "tpuctl.yaml"
    path.write_text("type: v4-8\n")
    words = ("config", "init", "--type", "v4-16")

    assert offline(*words)[1:] == (
        (
            f"error: cannot ask for confirmation (replace {path}?): stdin is not a terminal\n"
            "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)\n"
        ),
        2,
    )
    assert offline(*words, stdin="n\n", terminal=True)[2] == 1
    assert path.read_text() == "type: v4-8\n"
    assert offline(*words, "--yes")[2] == 0
    assert "\ntype: v4-16\n" in path.read_text()


def test_init_takes_nothing_from_a_file_that_is_not_trusted(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("project: foreign-project\ntype: v4-8\n")

    assert offline("config", "init", "--zone", "us-central2-b", "--yes")[2] == 0
    text = (offline.folder / "tpuctl.yaml").read_text()
    assert ("foreign-project" in text, "\ntype: v4-8\n" in text) == (False, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param((), "cannot ask for the settings: stdin is not a terminal", id="no-terminal"),
        pytest.param(("--type", "v4-9x"), "v4-9x", id="type"),
        pytest.param(("--tier", "cheap"), "cheap", id="tier"),
        pytest.param(("--zone", "us-cental2-b"), "us-cental2-b", id="zone"),
        pytest.param(("--project", "P"), "P", id="project"),
        pytest.param(("--bucket", "s3://x"), "s3://x", id="buckets"),
    ],
)
def test_init_with_an_invalid_answer_writes_nothing(offline: Console, words: tuple[str, ...], message: str) -> None:
    _, err, code = offline("config", "init", *words)

    assert (message in err.splitlines()[0], code) == (True, 2), err
    assert not (offline.folder / "tpuctl.yaml").exists()
