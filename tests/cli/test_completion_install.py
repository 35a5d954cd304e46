"""`tpuctl completion --install` and `--uninstall`: which files are written, and which are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Console
from tpuctl.cli.completion_places import SHELLS, completion_place, completion_script, detect_shell
from tpuctl.errors import InvalidInputError

SCRIPTS = {
    "bash": ".local/share/bash-completion/completions/tpuctl",
    "zsh": ".local/share/zsh/site-functions/_tpuctl",
    "fish": ".config/fish/completions/tpuctl.fish",
}


@pytest.fixture
def home(offline: Console) -> Path:
    """The user's home directory."""
    return Path(offline.environ["HOME"])


def files_below(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("shell", SHELLS)
def test_install_writes_the_printed_script_again_without_harm(offline: Console, home: Path, shell: str) -> None:
    path = home / SCRIPTS[shell]

    out, err, code = offline("completion", "--install", shell, "--yes")
    assert (out, err.splitlines()[-1], code) == (
        f"{path}\n",
        f"{shell} completion is installed: open a new shell to use it",
        0,
    )
    assert path.read_text() == offline("completion", shell)[0] == completion_script(shell)
    assert path.stat().st_mode & 0o777 == 0o644

    installed = {name: (home / name).read_bytes() for name in files_below(home)}
    assert offline("completion", "--install", shell, "--yes") == (
        f"{path}\n",
        f"{shell} completion is already up to date\n",
        0,
    )
    assert {name: (home / name).read_bytes() for name in files_below(home)} == installed


def test_install_replaces_an_older_script(offline: Console, home: Path) -> None:
    path = home / SCRIPTS["fish"]
    path.parent.mkdir(parents=True)
    path.write_text("# tpuctl completion for fish: of an older version\n")

    assert offline("completion", "--install", "fish")[1:] == (
        "fish completion is installed: open a new shell to use it\n",
        0,
    )
    assert path.read_text() == completion_script("fish")


@pytest.mark.parametrize(
    "startup",
    [
        pytest.param(b"", id="no startup file"),
        pytest.param(b"PROMPT='> '\n\n", id="startup file"),
        pytest.param(b"\xff\xfe\n", id="startup file that is not UTF-8"),
    ],
)
def test_uninstall_restores_the_startup_file(offline: Console, home: Path, startup: bytes) -> None:
    if startup:
        (home / ".zshrc").write_bytes(startup)
        (home / ".zshrc").chmod(0o640)
    offline("completion", "--install", "zsh", "--yes")
    assert (home / ".zshrc").read_bytes() != startup

    out, err, code = offline("completion", "--uninstall")

    assert (out, err, code) == (f"{home / '.zshrc'}\n{home / SCRIPTS['zsh']}\n", "", 0)
    assert files_below(home) == ({".zshrc"} if startup else set())
    if startup:
        assert (home / ".zshrc").read_bytes() == startup
        assert (home / ".zshrc").stat().st_mode & 0o777 == 0o640
    assert offline("completion", "--uninstall") == ("", "no completion is installed\n", 0)


def test_lines_are_added_only_after_a_yes(offline: Console, home: Path) -> None:
    refused = offline("completion", "--install", "zsh", stdin="n\n")
    unasked = offline("completion", "--install", "zsh")

    folder = home / ".local/share/zsh/site-functions"
    lines = (
        "  # >>> tpuctl completion >>>\n"
        f"  fpath=({folder} $fpath)\n"
        "  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }\n"
        f"  [[ -r {folder}/_tpuctl ]] && autoload -Uz _tpuctl && compdef _tpuctl tpuctl\n"
        "  # <<< tpuctl completion <<<\n"
    )
    needed = f"zsh must load it in {home}/.zshrc:\n{lines}"
    warning = "warning: zsh does not load it yet: add the lines, or pass `--yes`\n"
    assert refused == (f"{folder}/_tpuctl\n", f"{needed}add these lines? [y/N] {warning}", 0)
    assert unasked == (f"{folder}/_tpuctl\n", f"{needed}{warning}", 0)
    assert not (home / ".zshrc").exists()

    assert offline("completion", "--install", "zsh", stdin="y\n")[1].splitlines()[-2:] == [
        f"add these lines? [y/N] added 5 lines to {home}/.zshrc",
        "zsh completion is installed: open a new shell to use it",
    ]
    assert (home / ".zshrc").read_text() == lines.replace("  ", "")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("fpath+=({home}/.local/share/zsh/site-functions)", id="absolute"),
        pytest.param("fpath=(~/.local/share/zsh/site-functions $fpath)", id="tilde"),
        pytest.param("  fpath=($HOME/.local/share/zsh/site-functions $fpath)", id="HOME"),
    ],
)
def test_lines_that_the_user_wrote_are_enough(offline: Console, home: Path, line: str) -> None:
    (home / ".zshrc").write_text(f"{line.format(home=home)}\nautoload -Uz compinit && compinit\n")
    before = (home / ".zshrc").read_text()

    assert offline("completion", "--install", "zsh", "--yes")[1] == (
        "zsh completion is installed: open a new shell to use it\n"
    )
    assert (home / ".zshrc").read_text() == before


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("# fpath=({folder} $fpath)", id="comment"),
        pytest.param("ls {folder}", id="another command"),
        pytest.param("fpath=({folder}-old $fpath)", id="another folder"),
    ],
)
def test_line_that_does_not_load_the_script_is_not_enough(offline: Console, home: Path, line: str) -> None:
    (home / ".zshrc").write_text(f"{line.format(folder=home / '.local/share/zsh/site-functions')}\n")

    assert f"added 5 lines to {home}/.zshrc" in offline("completion", "--install", "zsh", "--yes")[1]


def test_install_in_another_folder_replaces_the_lines(offline: Console, home: Path) -> None:
    (home / ".zshrc").write_text("first\n")
    offline("completion", "--install", "zsh", "--yes")
    (home / ".zshrc").write_text(f"{(home / '.zshrc').read_text()}last\n")

    err = offline("completion", "--install", "zsh", "--yes", XDG_DATA_HOME=str(home / "data"))[1]

    assert err == f"added 5 lines to {home}/.zshrc\nzsh completion is installed: open a new shell to use it\n"
    first, last, mark, fpath, *_ = (home / ".zshrc").read_text().splitlines()
    assert (first, last, mark) == ("first", "last", "# >>> tpuctl completion >>>")
    assert fpath == f"fpath=({home}/data/zsh/site-functions $fpath)"
    assert (home / ".zshrc").read_text().count("fpath=") == 1


def test_uninstall_keeps_lines_after_a_mark_without_an_end(offline: Console, home: Path) -> None:
    (home / ".zshrc").write_text("# >>> tpuctl completion >>>\nmine\n")
    offline("completion", "--install", "zsh", "--yes")

    offline("completion", "--uninstall", "zsh")

    assert (home / ".zshrc").read_text() == "# >>> tpuctl completion >>>\nmine\n"


def test_startup_file_that_is_a_symlink_stays_one(offline: Console, home: Path) -> None:
    """Many users keep their startup files in a repository."""
    (home / "dotfiles").mkdir()
    (home / "dotfiles" / "zshrc").write_text("# mine\n")
    (home / ".zshrc").symlink_to("dotfiles/zshrc")

    offline("completion", "--install", "zsh", "--yes")
    assert "tpuctl" in (home / "dotfiles" / "zshrc").read_text()
    offline("completion", "--uninstall", "zsh")

    assert (home / ".zshrc").is_symlink()
    assert (home / "dotfiles" / "zshrc").read_text() == "# mine\n"


@pytest.mark.parametrize("action", ["--install", "--uninstall"])
@pytest.mark.parametrize("kind", ["own script", "symlink"])
def test_file_that_tpuctl_did_not_write_is_left_alone(offline: Console, home: Path, kind: str, action: str) -> None:
    path = home / SCRIPTS["fish"]
    path.parent.mkdir(parents=True)
    match kind:
        case "own script":
            path.write_text("complete -c tpuctl -f\n")
            error = f"{path} was not written by tpuctl"
        case _:
            (home / "script").write_text(completion_script("fish"))
            path.symlink_to(home / "script")
            error = f"{path} is a symlink"
    before = files_below(home)

    assert offline("completion", action, "fish") == (
        "",
        f"error: {error}\n  hint: move it away: `mv {path} {path}.old`\n",
        8,
    )
    assert files_below(home) == before


@pytest.mark.parametrize("action", ["--install", "--uninstall"])
@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        pytest.param(".zshrc", "is a directory", id="startup file"),
        pytest.param(SCRIPTS["zsh"], "is a directory", id="script"),
    ],
)
def test_unreadable_file_is_an_error(offline: Console, home: Path, blocked: str, reason: str, action: str) -> None:
    (home / blocked).mkdir(parents=True)

    assert offline("completion", action, "zsh", "--yes") == (
        "",
        f"error: cannot read {home / blocked}: {reason}\n  hint: see what is there: `ls -ld {home / blocked}`\n",
        1,
    )
    assert files_below(home) == set()


def test_startup_file_that_is_a_pipe_is_not_waited_for(offline: Console, home: Path) -> None:
    os.mkfifo(home / ".zshrc")

    path = home / ".zshrc"
    error = f"error: cannot read {path}: it is not a regular file\n  hint: see what is there: `ls -ld {path}`\n"
    assert offline("completion", "--install", "zsh", "--yes") == ("", error, 1)


def test_dangling_startup_file_is_an_error(offline: Console, home: Path) -> None:
    (home / ".zshrc").symlink_to("dotfiles/zshrc")

    _, err, code = offline("completion", "--install", "zsh", "--yes")

    assert (err, code) == (
        f"error: {home}/.zshrc is a symlink to a file that does not exist\n  hint: remove it: `rm {home}/.zshrc`\n",
        8,
    )
    assert not (home / "dotfiles").exists()


def test_home_of_another_user_is_refused(offline: Console, home: Path) -> None:
    """With sudo the files would belong to root."""
    other = home if os.geteuid() == 0 else Path("/usr")
    if os.geteuid() == 0:
        os.chown(home, 65534, 65534)

    assert offline("completion", "--install", "fish", HOME=str(other)) == (
        "",
        f"error: {other} belongs to another user\n  hint: run it as that user, without sudo\n",
        8,
    )


def test_uninstall_of_all_shells_leaves_a_file_of_the_user_alone(offline: Console, home: Path) -> None:
    for shell in SHELLS:
        offline("completion", "--install", shell, "--yes")
    (home / SCRIPTS["bash"]).write_text("complete -W up tpuctl\n")

    out, err, code = offline("completion", "--uninstall")

    # Where bash-completion is loaded, no startup file of bash has lines.
    startup_files = [".bashrc"] if completion_place("bash", {"HOME": str(home)}).lines else []
    removed = [*startup_files, ".zshrc", SCRIPTS["zsh"], SCRIPTS["fish"]]
    assert out == "".join(f"{home / name}\n" for name in removed)
    assert (err, code) == (f"warning: {home / SCRIPTS['bash']} was not written by tpuctl: it stays\n", 0)
    assert files_below(home) == {SCRIPTS["bash"]}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(
            (),
            "`tpuctl completion` needs a shell\n  hint: install for yours: `tpuctl completion --install`",
            id="nothing",
        ),
        pytest.param(
            ("zhs",),
            "invalid value for `[SHELL]`: `zhs` is not one of `bash`, `zsh`, `fish`\n  hint: did you mean `zsh`?",
            id="unknown shell",
        ),
        pytest.param(
            ("--install", "--uninstall"),
            "`--install` and `--uninstall` exclude each other\n  hint: leave one of them out",
            id="both",
        ),
    ],
)
def test_wrong_command_line_is_refused(offline: Console, words: tuple[str, ...], error: str) -> None:
    assert offline("completion", *words) == ("", f"error: {error}\n", 2)


@pytest.mark.parametrize(
    ("shell", "environ", "path", "startup_file", "lines"),
    [
        pytest.param("bash", {}, "/h/.local/share/bash-completion/completions/tpuctl", "/h/.bashrc", 1, id="bash"),
        pytest.param(
            "bash", {"XDG_DATA_HOME": "/x"}, "/x/bash-completion/completions/tpuctl", "/h/.bashrc", 1, id="bash XDG"
        ),
        pytest.param(
            "bash", {"BASH_COMPLETION_USER_DIR": "/b:/c"}, "/b/completions/tpuctl", "/h/.bashrc", 1, id="bash's own variable"
        ),
        pytest.param("zsh", {}, "/h/.local/share/zsh/site-functions/_tpuctl", "/h/.zshrc", 3, id="zsh"),
        pytest.param(
            "zsh", {"ZDOTDIR": "/z"}, "/h/.local/share/zsh/site-functions/_tpuctl", "/z/.zshrc", 3, id="zsh ZDOTDIR"
        ),
        pytest.param(
            "zsh",
            {"FPATH": "/usr/share/zsh:/h/.local/share/zsh/site-functions"},
            "/h/.local/share/zsh/site-functions/_tpuctl", "/h/.zshrc", 0,
            id="zsh FPATH",
        ),
        pytest.param("fish", {}, "/h/.config/fish/completions/tpuctl.fish", "/h/.config/fish/config.fish", 0, id="fish"),
        pytest.param(
            "fish", {"XDG_CONFIG_HOME": "/c"}, "/c/fish/completions/tpuctl.fish", "/c/fish/config.fish", 0, id="fish XDG"
        ),
        pytest.param(
            "fish",
            {"XDG_CONFIG_HOME": "relative"},
            "/h/.config/fish/completions/tpuctl.fish", "/h/.config/fish/config.fish", 0,
            id="relative XDG",
        ),
    ],
)  # fmt: skip
def test_place_of_the_script(shell: str, environ: dict[str, str], path: str, startup_file: str, lines: int) -> None:
    place = completion_place(shell, {"HOME": "/h", **environ}, bash_completion=())

    assert (str(place.path), str(place.startup_file), len(place.lines)) == (path, startup_file, lines)


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        pytest.param(".bashrc", "if true; then\n  . /usr/share/bash-completion/bash_completion\nfi\n", 0, id="bashrc"),
        pytest.param(".bash_profile", ". /opt/homebrew/etc/profile.d/bash_completion.sh\n", 0, id="profile"),
        pytest.param("system", ". /usr/share/bash-completion/bash_completion\n", 0, id="of the system"),
        pytest.param("system", "#  . /usr/share/bash-completion/bash_completion\n", 1, id="comment"),
        pytest.param(".bashrc", "alias ll='ls -l'\n", 1, id="not loaded"),
    ],
)
def test_bash_needs_no_lines_where_it_loads_its_package(tmp_path: Path, name: str, content: str, lines: int) -> None:
    """The package alone is not enough: Debian's root and its containers do not load it."""
    package = tmp_path / "bash_completion"
    package.touch()
    (tmp_path / name).write_text(content)

    def place(*packages: Path) -> int:
        environ, startup = {"HOME": str(tmp_path)}, (tmp_path / "system",)
        return len(completion_place("bash", environ, bash_completion=packages, bash_startup=startup).lines)

    assert (place(package), place()) == (lines, 1)


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}], ids=["unset", "empty", "relative"])
def test_place_without_a_home_directory_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="HOME is not"):
        completion_place("fish", environ)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_is_that_of_the_login(offline: Console, home: Path, shell: str) -> None:
    assert detect_shell({"SHELL": f"/usr/local/bin/{shell}"}) == shell
    assert offline("completion", "--install", SHELL=f"/bin/{shell}")[0] == f"{home / SCRIPTS[shell]}\n"
