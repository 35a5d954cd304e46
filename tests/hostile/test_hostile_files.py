"""Files that a user of a worker put in the way of a program that runs there as root, or as another user."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuctl.ssh.agent.user_files import open_below, open_entry
from tpuctl.ssh.agent.worker_use import newest_job, running_jobs_of
from tpuctl.ssh.channel import bootstrap

LINK = "no plain file or folder of its user"
HOUR = 3600


def plain(home: Path, _: Path) -> None:
    job(home).mkdir(parents=True)
    (job(home) / "lock").touch()


def job(home: Path) -> Path:
    return home / ".tpuctl" / "jobs" / "x.0"


def linked_lock(home: Path, pipe: Path) -> None:
    job(home).mkdir(parents=True)
    (job(home) / "lock").symlink_to(pipe)


def pipe_as_lock(home: Path, pipe: Path) -> None:
    job(home).mkdir(parents=True)
    pipe.rename(job(home) / "lock")


def linked_job(home: Path, pipe: Path) -> None:
    away = pipe.parent / "away"
    away.mkdir()
    pipe.rename(away / "lock")
    job(home).parent.mkdir(parents=True)
    job(home).symlink_to(away)


def linked_home(home: Path, pipe: Path) -> None:
    away = pipe.parent / "away"
    (away / "jobs" / "x.0").mkdir(parents=True)
    pipe.rename(away / "jobs" / "x.0" / "lock")
    (home / ".tpuctl").symlink_to(away)


def linked_pid(home: Path, pipe: Path) -> None:
    linked_lock(home, pipe)
    for name in ("pid", "about", "token"):
        (job(home) / name).symlink_to(pipe)


# what the user does; whether a job counts as running; what cannot be examined
_TRAPS: dict[str, tuple[Callable[[Path, Path], None], bool, str]] = {
    "plain": (plain, False, ""),
    "lock-is-a-link": (linked_lock, True, ""),
    "lock-is-a-pipe": (pipe_as_lock, True, ""),
    "job-is-a-link": (linked_job, True, ""),
    "folder-is-a-link": (linked_home, False, LINK),
    "files-are-links": (linked_pid, True, ""),
}


@pytest.mark.parametrize(("trap", "is_running", "unknown"), _TRAPS.values(), ids=_TRAPS.keys())
def test_link_or_pipe_of_a_user_is_not_opened(
    tmp_path: Path, trap: Callable[[Path, Path], None], unknown: str, *, is_running: bool
) -> None:
    """What cannot be examined counts as a job that runs: a hidden job never looks idle."""
    home, pipe = tmp_path / "home", tmp_path / "pipe"
    home.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    trap(home, pipe)

    uses, leaders, why = running_jobs_of(str(home))
    newest_job(str(home))

    # The hang-up stays if a writer has ever opened the pipe.
    hangs_up = select.poll()
    hangs_up.register(reader, select.POLLIN)
    assert ([one["name"] for one in uses], leaders) == (["x"] if is_running else [], set())
    assert why == ([f"the jobs below {home} cannot be examined: {unknown}"] if unknown else [])
    assert hangs_up.poll(0) == []
    os.close(reader)


def test_running_job_of_a_user_is_seen_without_write_access(tmp_path: Path) -> None:
    plain(tmp_path, tmp_path)
    (job(tmp_path) / "pid").write_text("17 18\n")
    with (job(tmp_path) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (job(tmp_path) / "lock").chmod(0o444)
        running = running_jobs_of(str(tmp_path))
    ended = running_jobs_of(str(tmp_path))

    assert ([one["name"] for one in running[0]], running[1:]) == (["x"], ({17}, []))
    assert ended == ([], set(), [])


def test_file_of_another_user_than_the_owner_of_the_home_is_not_opened(tmp_path: Path) -> None:
    plain(tmp_path, tmp_path)
    folder = open_below(str(tmp_path), ".tpuctl", "jobs", "x.0")

    with pytest.raises(OSError, match=LINK):
        open_entry(folder, "lock", owner=os.geteuid() + 1)
    os.close(folder)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize("is_left_open", [False, True], ids=["created", "left-open"])
def test_folders_of_tpuctl_are_for_their_owner_alone(tmp_path: Path, umask: int, *, is_left_open: bool) -> None:
    """Also those that an earlier version made under such a umask."""
    if is_left_open:
        (tmp_path / ".tpuctl" / "jobs").mkdir(parents=True)
        for folder in (tmp_path / ".tpuctl", tmp_path / ".tpuctl" / "jobs"):
            folder.chmod(0o777)
    line, source = bootstrap("job", "own_folder('jobs')")

    subprocess.run(["sh", "-c", line], input=source, env={**os.environ, "HOME": str(tmp_path)}, umask=umask, check=True)

    made = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert made == {".tpuctl": 0o700, ".tpuctl/jobs": 0o700}
