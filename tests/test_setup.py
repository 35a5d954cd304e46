"""`setup`: from where it comes, where it goes, and that what a stranger's project file says is shown before it is used."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, one_face
from tpuctl.cli.app import App
from tpuctl.cli.approval import show_first_use
from tpuctl.cli.invocation import Invocation
from tpuctl.cli.spec import build_spec
from tpuctl.errors import InvalidInputError, NotConfirmedError
from tpuctl.model import NodeSpec
from tpuctl.output.terminal import Streams

LINES = "pip install -U jax[tpu]\ngit clone https://example.com/train\n"
IN_YAML = "type: v4-8\nsetup: |\n  pip install -U jax[tpu]\n  git clone https://example.com/train\n"

# A worker that takes the lines of a set-up and runs none of them.
AS_IF_DONE = "cat > /dev/null; echo; echo tpuctl-set-up-begins"


def app_in(
    folder: Path, environ: Mapping[str, str] | None = None, *, stdin: str | None = None, quiet: bool = False
) -> tuple[App, io.StringIO]:
    """Return an app in a folder, and its stderr; somebody can be asked where there is a stdin."""
    stderr = io.StringIO()
    streams = Streams(io.StringIO(stdin), io.StringIO(), stderr, stdin_is_terminal=stdin is not None)
    environ = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), **(environ or {})}
    app = App(Invocation((), environ, streams, folder))
    app.take({"quiet": quiet})
    return app, stderr


def spec_of(app: App, **given: object) -> NodeSpec:
    spec = build_spec(app, {"type": "v4-8", **given})
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ({}, {}, LINES),
        ({}, {"TPUCTL_SETUP": "echo variable"}, "echo variable"),
        ({"setup": "echo flag"}, {"TPUCTL_SETUP": "echo variable"}, "echo flag"),
        ({"setup_script": "setup.sh"}, {"TPUCTL_SETUP": "echo variable"}, "#!/bin/sh\necho file\n"),
    ],
)
def test_setup_is_a_setting_like_others(
    tmp_path: Path, given: dict[str, object], environ: dict[str, str], expected: str
) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    (tmp_path / "setup.sh").write_text("#!/bin/sh\necho file\n")

    assert spec_of(app_in(tmp_path, environ)[0], **given).setup == expected


def test_two_ways_at_once_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    app, _ = app_in(tmp_path)

    with pytest.raises(InvalidInputError, match="`--setup` and `--setup-script` exclude each other"):
        spec_of(app, setup="true", setup_script="setup.sh")
    with pytest.raises(InvalidInputError, match=r"`--setup-script .*` cannot be read: No such file or directory"):
        spec_of(app, setup_script="setup.sh")


def test_setup_is_never_sent_nor_compared_but_remembered(tmp_path: Path) -> None:
    app, _ = app_in(tmp_path)
    bare, spec = spec_of(app), spec_of(app, setup=LINES)

    assert spec.to_api() == bare.to_api()
    assert spec.named == bare.named
    assert NodeSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    # What an older tpuctl has written.
    assert NodeSpec.from_json({key: value for key, value in spec.to_json().items() if key != "setup"}) == bare


@one_face
def test_up_keeps_the_setup_in_the_journal_and_out_of_requests(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh(AS_IF_DONE)
    up = ("up", "demo", "--type", "v4-8", "--zone", ZONE, "--for", "ready")

    assert tpuctl(*up, "--setup", LINES)[2] == 0
    # Another setup is no difference: the node stays.
    assert tpuctl(*up, "--setup", "true")[2] == 0

    lines = [
        json.loads(line)
        for path in Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("demo*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert LINES in [line["spec"]["setup"] for line in lines if line.get("spec")]
    assert sandbox.changes().count("create") == 1


def test_the_first_use_of_a_project_files_setup_is_shown_once(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    app, err = app_in(tmp_path, quiet=True)

    show_first_use(app, spec_of(app).setup)
    shown = err.getvalue()
    show_first_use(app, spec_of(app).setup)

    assert (
        shown
        == err.getvalue()
        == (
            f"warning: {tmp_path}/tpuctl.yaml line 2 has a `setup` that was not used here before; every worker of a new node "
            "runs:\n    pip install -U jax[tpu]\n    git clone https://example.com/train\n"
        )
    )
    seen = tmp_path / "state" / "seen-setups"
    assert stat.S_IMODE(seen.stat().st_mode) == 0o600
    assert stat.S_IMODE(seen.parent.stat().st_mode) == 0o700
    # One word is another text.
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML.replace("train", "mine"))
    again, err = app_in(tmp_path)
    show_first_use(again, spec_of(again).setup)
    assert "clone https://example.com/mine" in err.getvalue()


def test_what_the_terminal_would_obey_is_not_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text('setup: "echo \\e[8m; rm -rf /\\u202e"\n')
    app, err = app_in(tmp_path)

    show_first_use(app, spec_of(app).setup)

    assert err.getvalue().splitlines()[1] == "    echo  [8m; rm -rf / "


def test_on_a_terminal_it_is_asked_about_and_a_no_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)

    for answer in ("n\n", ""):
        app, err = app_in(tmp_path, stdin=answer)
        with pytest.raises(NotConfirmedError):
            show_first_use(app, spec_of(app).setup)
        assert err.getvalue().endswith("may the workers run that? [y/N] ")
    app, _ = app_in(tmp_path, stdin="y\n")
    show_first_use(app, spec_of(app).setup)
    app, err = app_in(tmp_path, stdin="")
    show_first_use(app, spec_of(app).setup)
    assert err.getvalue() == ""


@pytest.mark.parametrize(("yes", "environ"), [(True, {}), (False, {"CI": "true"})])
def test_with_yes_or_where_nobody_can_be_asked_it_is_shown_and_used(
    tmp_path: Path, environ: dict[str, str], *, yes: bool
) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    app, err = app_in(tmp_path, environ, stdin="n\n")

    show_first_use(app, spec_of(app).setup, yes=yes)

    assert err.getvalue().startswith("warning: ")
    assert err.getvalue().endswith("train\n")


def test_what_the_user_wrote_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    user_file = tmp_path / "config" / "tpuctl" / "config.yaml"
    user_file.parent.mkdir(parents=True)

    flag, flag_err = app_in(tmp_path, stdin="")
    show_first_use(flag, spec_of(flag, setup="true").setup)
    variable, variable_err = app_in(tmp_path, {"TPUCTL_SETUP": LINES}, stdin="")
    show_first_use(variable, spec_of(variable).setup)
    (tmp_path / "tpuctl.yaml").unlink()
    user_file.write_text(IN_YAML)
    mine, mine_err = app_in(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config")}, stdin="")
    show_first_use(mine, spec_of(mine).setup)
    none, none_err = app_in(tmp_path, stdin="")
    show_first_use(none, None)

    assert [err.getvalue() for err in (flag_err, variable_err, mine_err, none_err)] == [""] * 4


def test_a_state_folder_that_cannot_be_written_only_shows_it_again(tmp_path: Path) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    (tmp_path / "state").write_text("a file")

    for _ in range(2):
        app, err = app_in(tmp_path)
        show_first_use(app, spec_of(app).setup)
        assert err.getvalue().startswith("warning: ")


def test_config_shows_and_changes_a_setup_of_several_lines(offline: Console) -> None:
    ours = offline.folder / "tpuctl.yaml"
    ours.write_text("# ours\n" + IN_YAML + "# the end\nzone: us-central2-b\n")

    assert offline("config", "show", "setup") == (
        "setup\tpip install -U jax[tpu]\\ngit clone https://example.com/train\ttpuctl.yaml line 3\n",
        "",
        0,
    )
    assert offline("config", "show", "setup", terminal=True, NO_COLOR="1")[0].splitlines() == [
        "KEY    VALUE                                SOURCE",
        "setup  pip install -U jax[tpu] … (2 lines)  tpuctl.yaml line 3",
    ]
    assert offline("config", "show", "setup", "-o", "name")[0] == LINES + "\n"
    assert offline("config", "set", "setup", "echo a\necho b", "--here")[2] == 0
    assert ours.read_text() == '# ours\ntype: v4-8\nsetup: "echo a\\necho b"\n# the end\nzone: us-central2-b\n'
    ours.write_text(IN_YAML + "zone: us-central2-b\n")
    assert offline("config", "unset", "setup", "--here")[2] == 0
    assert ours.read_text() == "type: v4-8\nzone: us-central2-b\n"


def test_a_setup_that_is_no_text_is_refused_with_its_line(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("type: v4-8\nsetup:\n  - a\n  - b\n")

    assert offline("config", "show") == (
        "",
        f"error: {offline.folder / 'tpuctl.yaml'} line 2: `setup`: this is a list; it must be one value\n",
        2,
    )
