"""Files that the user names: which are read or refused, and the limits."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.files import decode_user_text, expand_user_path, read_user_bytes, read_user_text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param("é\n".encode(), "é\n", id="utf-8"),
        pytest.param(b"a\r\nb\rc\n", "a\nb\nc\n", id="line-ends"),
        pytest.param(b"x" * 100, "x" * 100, id="as-large-as-the-limit"),
    ],
)
def test_read_text_of_a_regular_file_returns_its_text(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    assert read_user_text(path, limit=100) == text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("absent", "`absent` cannot be read: No such file or directory", id="absent"),
        pytest.param("folder", "`folder` cannot be read: it is a directory", id="directory"),
        pytest.param("/dev/zero", "`/dev/zero` cannot be read: it is a device or a socket", id="device"),
        pytest.param("sparse", "`sparse` is too large: 10 GiB; the limit is 100 bytes", id="10-GiB"),
        pytest.param("fifo", "`fifo` cannot be read: it is a pipe, and no program opened it", id="no-writer"),
        pytest.param("x" * 300, "` is not a path: file name too long", id="long-name"),
        pytest.param("a\0b", "` is not a path: a path must not contain a zero byte", id="nul"),
        pytest.param("~no-such-user/x", "`~no-such-user/x`: no such user", id="no-such-user"),
    ],
)
def test_read_bytes_of_anything_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("sparse").touch()
    os.truncate("sparse", 10 * 1024**3)

    with pytest.raises(InvalidInputError) as refused:
        read_user_bytes(Path(name), limit=100)
    assert message in str(refused.value)


def test_read_bytes_of_a_pipe_waits_for_its_writer_and_reads_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            pipe.write(b"first ")
            pipe.write(b"second")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_user_bytes(path, limit=100) == b"first second"
    finally:
        writer.join()


@pytest.mark.parametrize("content", [pytest.param(b"", id="empty"), pytest.param(b"text", id="text")])
def test_read_bytes_of_a_process_substitution_whose_program_has_ended(content: bytes) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, content)
    os.close(theirs)
    try:
        assert read_user_bytes(Path(f"/dev/fd/{ours}")) == content
    finally:
        os.close(ours)


def test_read_bytes_of_dev_null_is_empty() -> None:
    assert read_user_bytes(Path(os.devnull)) == b""


def test_read_text_invalid_utf8_names_the_place() -> None:
    with pytest.raises(InvalidInputError, match=r"`f` cannot be read: not UTF-8 text: line 2, byte 3 \(0xff\)"):
        decode_user_text(b"a\nbc\xff\n", "`f`")


def test_expand_path_need_not_exist() -> None:
    assert expand_user_path(Path("no/such/file")) == Path("no/such/file")
