"""`setup`: where it comes from and where it goes. Its trust is tested in `test_trust.py`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.app.app import App, Invocation
from tpuctl.app.spec_options import SpecOptions, build_spec
from tpuctl.errors import InvalidInputError
from tpuctl.models.spec import FIELDS, NodeSpec
from tpuctl.output.terminal import StandardStreams

LINES = "pip install -U jax[tpu]\ngit clone https://example.com/train\n"
IN_YAML = "type: v4-8\nsetup: |\n  pip install -U jax[tpu]\n  git clone https://example.com/train\n"

# A worker that takes the lines of a set-up and runs none of them.
AS_IF_DONE = "cat > /dev/null; echo; echo tpuctl-set-up-begins"


def app_in(folder: Path, environ: Mapping[str, str] | None = None) -> App:
    """Return an app in a folder whose project file is trusted."""
    trusting = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_TRUST_PROJECT_FILE": "1"}
    streams = StandardStreams(io.StringIO(), io.StringIO(), io.StringIO())
    return App(Invocation((), {**trusting, **(environ or {})}, streams, folder))


def spec_of(app: App, **given: Any) -> NodeSpec:
    values = {name: given.pop(name) for name in list(given) if name in FIELDS and name != "type"}
    spec = build_spec(app, SpecOptions(type="v4-8", values=values, **given))
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
def test_setup_is_a_setting(tmp_path: Path, given: dict[str, object], environ: dict[str, str], expected: str) -> None:
    (tmp_path / "tpuctl.yaml").write_text(IN_YAML)
    (tmp_path / "setup.sh").write_text("#!/bin/sh\necho file\n")

    assert spec_of(app_in(tmp_path, environ), **given).setup == expected


def test_setup_twice_or_from_a_missing_file_is_refused(tmp_path: Path) -> None:
    app = app_in(tmp_path)

    with pytest.raises(InvalidInputError, match="cannot combine `--setup` and `--setup-script`"):
        spec_of(app, setup="true", setup_script="setup.sh")
    with pytest.raises(InvalidInputError, match=r"`--setup-script .*` cannot be read: No such file or directory"):
        spec_of(app, setup_script="setup.sh")


def test_setup_is_stored_but_not_sent_or_compared(tmp_path: Path) -> None:
    app = app_in(tmp_path)
    bare, spec = spec_of(app), spec_of(app, setup=LINES)

    assert spec.to_api() == bare.to_api()
    assert spec.named == bare.named
    assert NodeSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    # What an older tpuctl has written.
    assert NodeSpec.from_json({key: value for key, value in spec.to_json().items() if key != "setup"}) == bare


def test_up_stores_the_setup_in_the_journal_only(
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


def test_config_handles_a_setup_of_several_lines(offline: Console) -> None:
    ours = offline.folder / "tpuctl.yaml"
    ours.write_text("# ours\n" + IN_YAML + "# the end\nzone: us-central2-b\n")

    assert offline("config", "show", "setup") == (
        "setup\tpip install -U jax[tpu]\\ngit clone https://example.com/train\ttpuctl.yaml line 3 (not trusted)\n",
        "",
        0,
    )
    assert offline("config", "show", "setup", terminal=True, NO_COLOR="1")[0].splitlines() == [
        "KEY    VALUE                                SOURCE",
        "setup  pip install -U jax[tpu] … (2 lines)  tpuctl.yaml line 3 (not trusted)",
    ]
    assert offline("config", "show", "setup", "-o", "name")[0] == LINES + "\n"
    assert offline("config", "set", "setup", "echo a\necho b", "--here")[2] == 0
    assert ours.read_text() == '# ours\ntype: v4-8\nsetup: "echo a\\necho b"\n# the end\nzone: us-central2-b\n'
    ours.write_text(IN_YAML + "zone: us-central2-b\n")
    assert offline("config", "unset", "setup", "--here")[2] == 0
    assert ours.read_text() == "type: v4-8\nzone: us-central2-b\n"


def test_setup_that_is_not_text_is_refused_with_its_line(offline: Console) -> None:
    (offline.folder / "tpuctl.yaml").write_text("type: v4-8\nsetup:\n  - a\n  - b\n")

    assert offline("config", "show") == (
        "",
        f"error: {offline.folder / 'tpuctl.yaml'} line 2: `setup`: this is a list; it must be one value\n",
        2,
    )
