"""Runs on worker 0 while its node exists: deletes the node at the end of its time, or after it was idle for a given time.

It is started by `guard_setup`, as a service of systemd or as a detached process, and lives in the folder of guard_place.py:

    guard.py    this program                      log       what it did and what failed
    settings    JSON: the node, its id, `idle`    status    JSON: the result of the last look at the node
    lock        held while it runs; its pid       expiry    JSON: the end of the node's time that it knows

At each look it reads the node from the TPU API, with the token of the metadata server. That answer decides: the label (so that
`tpuctl extend` counts), the id (it ends for a recreated node), the state, and the time, which is the `Date` of the answer and
never the clock of this machine. A look that fails in any way is repeated with growing pauses, without end, and a guard that
ends otherwise than on purpose starts again.

It deletes its own node and nothing else. The service deletes a queued resource without its nodes only when they are gone, and
then this machine is gone too: `tpuctl gc` deletes that record. It must run under Python 3.8.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

from tpuctl.ssh.agent.guard_answers import (
    LATEST_TIME,
    LONGEST_RESPONSE,
    GuardedNode,
    GuardError,
    decode_object,
    parse_date,
    parse_error,
    parse_missing,
    parse_node,
    parse_token,
    printed,
)
from tpuctl.ssh.agent.guard_place import SHARED_FOLDER_MODE, is_safe
from tpuctl.ssh.agent.worker_use import examine_present_use, job_ended_since

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LOOK_INTERVAL = 300.0
IDLE_INTERVAL = 60.0
WARNING_TIME = 600
# One 404 may be about the zone or the project, or be wrong. As long as this machine runs, another look costs nothing: six in a
# row take a quarter of an hour.
ABSENT_LOOKS = 6
# Seconds for a request, and for the examination of this machine.
REQUEST_TIMEOUT = 30.0
EXAMINATION_TIMEOUT = 60.0
LONGEST_LOG = 256 * 1024
TAKE_OVER_TIME = 10.0
RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
# Seconds until the permissions are tested again.
PERMISSION_INTERVAL = 3600.0
METADATA_HOST = "metadata.google.internal"
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  # a path
# A token that lasts shorter is renewed before a look, so that it lasts until the end of it.
SHORTEST_TOKEN_TIME = 120
LOOPBACK_HOSTS = {"127.0.0.1", "::1", "localhost"}


class GuardStep:
    """What to do after a look: `wait`, `delete`, `stop` or `end`; why; and when the node ends if nothing changes."""

    def __init__(self, action: str, why: str, due: int | None = None) -> None:
        self.action, self.why, self.due = action, why, due


class KnownEnd:
    """What is known of the end of the node's time, in seconds since 1970; None for no end.

    `known`: the end that counts. `seen`: the label's. `since`: when an earlier end than the known one was seen first.
    """

    def __init__(self, known: int | None = None, seen: int | None = None, since: int | None = None) -> None:
        self.known, self.seen, self.since = known, seen, since

    @property
    def due(self) -> int | None:
        """When the node ends: an earlier end than the known one not before users were warned for ten minutes."""
        return self.seen if self.seen is None or self.since is None else max(self.seen, self.since + WARNING_TIME)


def next_end(before: KnownEnd, seen: int | None, now: int) -> KnownEnd:
    """Return what is known of the end after a look at `now`, at which the label had the end `seen`.

    Anyone who may change labels can move the end, and a guard that starts does not know what it was: such an end counts after
    a warning. A later one counts at once.
    """
    if seen is None:
        return KnownEnd()
    if before.known is not None and seen >= before.known:
        return KnownEnd(seen, seen)
    # A time in the future was an error of a clock.
    since = min(before.since, now) if before.since is not None and seen == before.seen else now
    return KnownEnd(seen, seen) if now - since >= WARNING_TIME else KnownEnd(before.known, seen, since)


def next_guard_step(
    settings: dict[str, Any], node: GuardedNode, end: KnownEnd, now: int, idle_since: int | None
) -> GuardStep:
    """Return the next step for the node as the API returned it at `now`. The first rule that matches wins."""
    if node.id != settings["id"]:
        return GuardStep("end", "the node was recreated: this guard ends")
    if node.is_kept:
        return GuardStep("wait", "label tpuctl-keep: never deleted")
    text = node.labels.get("tpuctl-expires")
    note = "" if text is None or node.expires is not None else "label tpuctl-expires=%s is not a time" % printed(text)
    due, action, why = end.due, "delete", "expired"
    idle = settings.get("idle")
    if idle and idle_since is not None and (due is None or idle_since + idle < due):
        due, action, why = idle_since + idle, settings["onIdle"], "idle for %d min" % (idle // 60)
    if due is None:
        return GuardStep("wait", note or ("in use" if idle else "no time limit"))
    if now < due:
        moved = end.since is not None and end.known is not None and end.due == due
        why = "idle" if why != "expired" else "its end was moved to an earlier time" if moved else "not expired"
        return GuardStep("wait", note or why, due)
    if node.state != "READY":
        return GuardStep("wait", "%s, but it is %s" % (why, printed(node.state)), due)
    return GuardStep(action, why, due)


class TpuService:
    """The TPU API, with the token of the metadata server. `now` is the time of its last answer."""

    def __init__(self, endpoint: str, environ: Mapping[str, str]) -> None:
        # The variables of Google's libraries and of gcloud.
        self.metadata = environ.get("GCE_METADATA_HOST") or METADATA_HOST
        manager = environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER") or RESOURCE_MANAGER
        self.manager = manager.rstrip("/")
        self.endpoint = (environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU") or endpoint).rstrip("/")
        self.now: int | None = None
        self._token = ""
        self._token_until = 0.0

    def renew_token(self) -> None:
        """Get a token of the worker's service account if the present one does not last for a look. Raises `GuardError`.

        Requests use it without asking again: between the last look and the deletion nothing else happens.
        """
        if time.monotonic() + SHORTEST_TOKEN_TIME < self._token_until:
            return
        flavor = {"Metadata-Flavor": "Google"}
        code, _, data = send_request("http://" + self.metadata, "GET", TOKEN_PATH, flavor, is_metadata=True)
        self._token, lasts = parse_token(code, decode_object(data) or {})
        self._token_until = time.monotonic() + lasts

    def call(self, method: str, path: str) -> dict[str, Any] | None:
        """Return the answer to a request; None for a 404 from the API. Raises `GuardError`."""
        code, date, data = send_request(self.endpoint, method, "/v2/" + path, self._headers())
        answer = decode_object(data)
        if answer is None:
            raise GuardError("api", "%s returned %d and no JSON" % (printed(self.endpoint), code))
        if date is None:
            raise GuardError("api", "%s returned %d without a date" % (printed(self.endpoint), code))
        self.now = date
        if code == 200 and "error" not in answer:
            return answer
        if code == 401:
            self._token_until = 0.0
        error = parse_error(code, answer, data, "%s %s" % (method, path))
        if error is not None:
            raise error
        return None

    def missing_permissions(self, project: str, needed: list[str]) -> list[str]:
        """Return which of the permissions the account surely lacks; none if that cannot be tested."""
        path = "/v3/projects/%s:testIamPermissions" % project
        headers = dict(self._headers(), **{"Content-Type": "application/json"})
        try:
            code, _, data = send_request(self.manager, "POST", path, headers, json.dumps({"permissions": needed}))
        except GuardError:
            return []
        answer = decode_object(data)
        return [] if answer is None else parse_missing(code, answer, needed)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer " + self._token, "Accept": "application/json"}


def send_request(
    origin: str, method: str, path: str, headers: dict[str, str], body: str = "", *, is_metadata: bool = False
) -> tuple[int, int | None, bytes]:
    """Send a request, without redirects and proxies; return status, `Date` and body of the answer. Raises `GuardError`.

    A token goes over https, or to this machine.
    """
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if parts.scheme != "https" and not is_metadata and host not in LOOPBACK_HOSTS:
        raise GuardError("refused", "%s is not https" % printed(origin))
    maker = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = maker(host, parts.port, timeout=REQUEST_TIMEOUT)
    late = None
    try:
        connection.connect()
        # The timeout of a socket is for each byte: an answer must not take a day either.
        late = threading.Timer(REQUEST_TIMEOUT, socket.socket.shutdown, (connection.sock, socket.SHUT_RDWR))
        late.daemon = True
        late.start()
        connection.request(method, parts.path + path, body=body or None, headers=headers)
        response = connection.getresponse()
        data = response.read(LONGEST_RESPONSE + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        text = "%s: %s" % (printed(origin), printed(str(error)) or type(error).__name__)
        raise GuardError("api", text) from error
    finally:
        if late is not None:
            late.cancel()
        connection.close()
    return response.status, parse_date(response.getheader("Date") or ""), data


class NodeGuard:
    """One guard: its settings, what it remembers between two looks, its log and its status."""

    def __init__(self, folder: str, environ: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        with open(os.path.join(folder, "settings"), encoding="utf-8") as file:
            self.settings = json.load(file)
        self.service = TpuService(self.settings["endpoint"], environ)
        self.environ = environ
        default = IDLE_INTERVAL if self.settings.get("idle") else LOOK_INTERVAL
        self.interval = float(environ.get("TPUCTL_GUARD_INTERVAL") or default)
        self.failures = 0
        self.idle_since: int | None = None
        # When the use of this machine was examined last, by its own clock.
        self.examined_at = time.time()
        self.end = self.read_end()
        self.warned: int | None = None
        self.lacks: list[str] = []
        self.tested_at: float | None = None
        self.noted = ""
        self.absences = 0

    def run(self) -> None:
        """Look at the node until it is gone, another one has its name, or the folder of this guard was removed."""
        self.log("started for %s, id %s" % (self.settings["node"], self.settings["id"]))
        while os.path.exists(os.path.join(self.folder, "settings")):
            pause = self.look()
            if pause is None:
                return
            time.sleep(pause)

    def look(self) -> float | None:
        """Look at the node once and act; return the pause before the next look, None at the end. Raises nothing."""
        try:
            step = self.take_step()
        except GuardError as error:
            return self.pause_after(error.kind, str(error))
        except Exception as error:  # noqa: BLE001  # whatever it is, the next look may succeed
            return self.pause_after("api", "%s: %s" % (type(error).__name__, printed(str(error))))
        if step.action == "end":
            self.write_status(step, step.why, ended=True)
            return None
        if self.failures:
            self.log("requests succeed again")
        self.failures = 0
        if self.lacks:
            self.write_status(step, "it lacks the permission " + ", ".join(self.lacks), problem="permission")
        else:
            self.write_status(step, step.why)
        left = None if step.due is None or self.service.now is None else step.due - self.service.now
        if left is not None and 0 < left <= WARNING_TIME and self.warned != step.due:
            self.warned = step.due
            self.warn(step, left)
        if left is None or left <= 0:
            return self.interval
        return min(self.interval, max(1.0, left - WARNING_TIME if left > WARNING_TIME else left))

    def take_step(self) -> GuardStep:
        """Look at the node, and end it if it is time to. Raises `GuardError`."""
        # What may take long comes first: then the last look, then the request that it allows.
        self.service.renew_token()
        self.test_permissions()
        step, activity, _ = self.examine()
        self.note("; ".join([step.why, *activity]))
        self.write_end()
        if step.action not in {"delete", "stop"}:
            return step
        self.log("%s: %s follows a last look" % (step.why, step.action))
        last, activity, node = self.examine()
        if last.action != step.action or node is None:
            self.note("; ".join([last.why, *activity]))
            return last
        if last.action == "stop":
            self.service.call("POST", self.settings["node"] + ":stop")
        else:
            self.service.call("DELETE", self.settings["node"])
        self.log("the %s was accepted" % last.action)
        if node.owner:
            self.log("its queued resource bills nothing now, and holds quota until `tpuctl gc` deletes it")
        return last

    def examine(self) -> tuple[GuardStep, list[str], GuardedNode | None]:
        """Examine this machine and then the node; return the next step, what uses the machine, and the node."""
        idle = self.settings.get("idle")
        activity = self.activity() if idle else []
        if activity:
            self.idle_since = None
        answer, now = self.service.call("GET", self.settings["node"]), self.service.now
        if answer is None or now is None:
            self.absences += 1
            if self.absences < ABSENT_LOOKS:
                raise GuardError("api", "the API does not find the node (404), while this machine runs")
            return GuardStep("end", "the node is gone: this guard ends"), activity, None
        self.absences = 0
        node = parse_node(answer)
        if idle and not activity and self.idle_since is None:
            self.idle_since = now
        self.end = next_end(self.end, node.expires, now)
        return next_guard_step(self.settings, node, self.end, now, self.idle_since), activity, node

    def pause_after(self, kind: str, text: str) -> float:
        """Log why a look failed, and return the pause before the next one."""
        self.failures += 1
        pause = min(self.interval / 10 * 2.0 ** min(self.failures - 1, 10), self.interval * 3)
        self.log("failed (%s): %s; tried again in %.0f s" % (kind, text, pause))
        self.write_status(None, text, problem=kind)
        return pause

    def warn(self, step: GuardStep, left: int) -> None:
        """Tell all terminals of this machine that the node ends soon."""
        name = self.settings["node"].rpartition("/")[2]
        is_idle = step.due != self.end.due
        what = "stopped" if is_idle and self.settings["onIdle"] == "stop" else "deleted"
        text = "tpuctl: this node, %s, is %s in %d min" % (name, what, max(1, left // 60))
        text += " because it is idle" if is_idle else ": `tpuctl extend %s 2h` gives it more time" % name
        self.log("warned all terminals: " + text)
        program = shutil.which("wall", path=self.environ.get("PATH"))
        if program:
            run_program([program, text], 10.0)

    def test_permissions(self) -> None:
        """Test from time to time whether the account may end nodes, long before that is needed."""
        now = time.monotonic()
        if self.tested_at is None or now - self.tested_at >= PERMISSION_INTERVAL:
            project = self.settings["node"].split("/")[1]
            needed = ["tpu.nodes.get", "tpu.nodes.delete"] + ["tpu.nodes.stop"] * (self.settings["onIdle"] == "stop")
            before, self.lacks = self.lacks, self.service.missing_permissions(project, needed)
            self.tested_at = now
            if self.lacks != before:
                has, names = ("lacks", self.lacks) if self.lacks else ("has", needed)
                self.log("the service account %s the permission %s" % (has, ", ".join(names)))

    def activity(self) -> list[str]:
        """Return what uses this machine, or did since the last look; in another process, which may hang."""
        since, self.examined_at = self.examined_at, time.time()
        words = [sys.executable, "-IS", os.path.join(self.folder, "guard.py"), "--activity", repr(since)]
        output = run_program(words, EXAMINATION_TIMEOUT, self.environ)
        try:
            return [str(line) for line in json.loads(output or b"")]
        except (ValueError, TypeError):
            return ["the machine cannot be examined"]

    def read_end(self) -> KnownEnd:
        """Return what an earlier run knew of the end of this node's time."""
        try:
            with open(os.path.join(self.folder, "expiry"), "rb") as file:
                found = decode_object(file.read(LONGEST_RESPONSE)) or {}
        except OSError:
            found = {}
        times = [found.get(name) for name in ("known", "seen", "since")]
        if found.get("id") != self.settings["id"] or not all(
            one is None or (type(one) is int and 0 <= one < LATEST_TIME) for one in times
        ):
            return KnownEnd()
        return KnownEnd(*times)

    def write_end(self) -> None:
        """Keep what is known of the end of the node's time for the next start."""
        found = {"id": self.settings["id"], "known": self.end.known, "seen": self.end.seen, "since": self.end.since}
        replace_file(os.path.join(self.folder, "expiry"), json.dumps(found))

    def note(self, text: str) -> None:
        """Log what differs from the note before."""
        if text != self.noted:
            self.noted = text
            self.log(text)

    def log(self, text: str) -> None:
        """Append a line to the log, with the time of the service if it is known."""
        append_log(self.folder, text, self.service.now)

    def write_status(
        self, step: GuardStep | None, text: str, *, problem: str | None = None, ended: bool = False
    ) -> None:
        """Write the result of the last look for `guard_setup`, which sends it to clients."""
        now = self.service.now
        state = {
            "node": self.settings["node"],
            "id": self.settings["id"],
            "at": now,
            "due": None if step is None else step.due,
            "text": text[:500],
            "problem": problem,
            "failures": self.failures,
            "hasEnded": ended,
            "pid": os.getpid(),
            # The time of a sandbox is not that of its machine.
            "clockOffset": None if now is None or "TPUCTL_DEVICE_ROOT" in self.environ else int(time.time()) - now,
        }
        replace_file(os.path.join(self.folder, "status"), json.dumps(state))


def run_program(words: list[str], patience: float, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the output of a program, None if it failed or took too long. One that cannot be killed is left behind."""
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return output if process.returncode == 0 else None


def append_log(folder: str, text: str, at: float | None = None) -> None:
    """Append a line to the log of a guard, and drop the older half of a long one."""
    moment = time.gmtime(time.time() if at is None else at)
    line = "%s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), text)
    try:
        file = os.open(os.path.join(folder, "log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, file_mode(folder))
        try:
            if os.fstat(file).st_size > LONGEST_LOG:
                rest = os.pread(file, LONGEST_LOG, LONGEST_LOG // 2)
                os.ftruncate(file, 0)
                os.write(file, rest.partition(b"\n")[2])
            os.write(file, line.encode("utf-8", "replace"))
        finally:
            os.close(file)
    except OSError:  # the disk is full: the guard does its work without a log
        pass


def replace_file(path: str, text: str) -> None:
    """Write a file of the guard atomically, if possible."""
    scratch = path + ".new"
    try:
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file_mode(os.path.dirname(path)))
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.rename(scratch, path)
    except OSError:
        pass


def file_mode(folder: str) -> int:
    """Return the mode of a new file of the guard: readable by all if its folder is."""
    return 0o644 if os.stat(folder).st_mode & 0o777 == SHARED_FOLDER_MODE else 0o600


def guard_main() -> None:
    """Run the guard of this folder until it ends on purpose, or print what uses this machine."""
    program = os.path.realpath(sys.argv[0])
    folder = os.path.dirname(program)
    if not is_safe(program):
        sys.exit("%s: other users can change it: not run" % program)
    if sys.argv[1:2] == ["--activity"]:
        in_use, unknown = examine_present_use()
        if not in_use and job_ended_since(float(sys.argv[2])):
            in_use.append("a job ended since the last look")
        print(json.dumps(in_use + unknown))  # noqa: T201  # for its parent
        return
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + TAKE_OVER_TIME
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                sys.exit("another guard does not end")
            time.sleep(0.1)
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d" % os.getpid(), 0)
    supervise(folder)


def supervise(folder: str) -> None:
    """Run the guard in another process, again whenever that ends otherwise than on purpose."""
    pause = float(os.environ.get("TPUCTL_GUARD_INTERVAL") or IDLE_INTERVAL)
    while os.path.exists(os.path.join(folder, "settings")):
        guard = os.fork()
        if not guard:
            code = 1
            try:
                NodeGuard(folder).run()
                code = 0
            except Exception as error:  # noqa: BLE001  # such as damaged settings
                append_log(folder, "the guard failed: %s: %s" % (type(error).__name__, printed(str(error))))
            finally:
                os._exit(code)
        _, how = os.waitpid(guard, 0)
        if how == 0:
            return
        ended = "by signal %d" % os.WTERMSIG(how) if os.WIFSIGNALED(how) else "with %d" % os.WEXITSTATUS(how)
        append_log(folder, "the guard ended %s, and starts again in %.0f s" % (ended, pause))
        time.sleep(pause)
