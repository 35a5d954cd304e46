"""Runs on a worker, beside a job: waits for the notice of a preemption, and passes it on to the job as a signal.

The metadata server of Compute Engine answers a waiting request when `instance/preempted` changes [Compute Engine
documentation], nominally 30 seconds before the machine is powered off; on TPU VMs about 10 s were seen [marin#5753]. A worker
without such a server, or without an answer, has no notice. It must run under Python 3.8.
"""

from __future__ import annotations

import os
import time

from tpuctl.ssh.agent.job_files import read, write

METADATA_HOST = "metadata.google.internal"
PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
# Seconds that one request waits, and between two that fail.
WAIT, PAUSE = 60, 5.0
SHORTEST, LONGEST = 10, 30
NOTICE = "notice"


def start_waiting(folder: str, group: int, number: int) -> int:
    """Start a process that sends the signal to a job's process group at the notice. Return its pid."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        # Not the lock of the job, nor the pipe by which its client learns of its end.
        os.closerange(3, 4096)
        if await_notice(parent):
            write(os.path.join(folder, NOTICE), b"%d %d\n" % (SHORTEST, LONGEST))
            os.killpg(group, number)
            text = b"tpuctl: notice of a preemption: signal %d sent, %d to %d s are left\n" % (
                number,
                SHORTEST,
                LONGEST,
            )
            out = os.open(folder + "/out", os.O_WRONLY | os.O_APPEND)
            os.write(out, text)
    finally:
        os._exit(0)


def await_notice(parent: int) -> bool:
    """Wait for the notice, as long as the parent lives; return whether it came."""
    tag = ""
    while os.getppid() == parent:
        state, tag = preemption_state(tag)
        if state == b"TRUE":
            return True
        if state is None:
            time.sleep(PAUSE)
    return False


def preemption_state(tag: str) -> tuple[bytes | None, str]:
    """Return the value, at once without a tag of the last answer, else when it changes, and its tag; None without an answer."""
    named = os.environ.get("GCE_METADATA_HOST")
    root = os.environ.get("TPUCTL_METADATA_ROOT")
    if named is None and root is not None:  # a sandbox worker has the values as files, with the server's own paths
        time.sleep(0.5 if tag else 0)
        return (read(os.path.join(root, "instance/preempted")) or b"").strip(), "file"
    import http.client  # noqa: PLC0415  # 20 ms, for few jobs

    host, slash, rest = (named or METADATA_HOST).partition("/")
    query = "?wait_for_change=true&timeout_sec=%d&last_etag=%s" % (WAIT, tag) if tag else ""
    connection = http.client.HTTPConnection(host, timeout=WAIT + 10)
    try:
        connection.request("GET", slash + rest + PREEMPTED_PATH + query, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        value = response.read(64).strip()
        is_ours = response.status == 200 and response.getheader("Metadata-Flavor") == "Google"
        return (value, response.getheader("ETag") or "") if is_ours else (None, "")
    except (OSError, ValueError, http.client.HTTPException):
        return None, ""
    finally:
        connection.close()
