"""Runs on worker 0 while its node exists: deletes the node at the end of its time, or after it was idle for a given time.

It is started by `guard_setup`, as a service of systemd or as a detached process, and lives in `~/.tpuctl/guard`:

    guard.py    this program                      log       what it did and what failed
    settings    JSON: the node, its id, `idle`    status    JSON: the result of the last look at the node
    lock        held while it runs; its pid

At each look it reads the node from the TPU API, with the token of the metadata server. That answer decides: the label (so that
`tpuctl extend` counts), the id (it ends for a recreated node), the state, and the time, which is the `Date` of the answer and
never the clock of this machine. A failed request is tried again with growing pauses, without end. It must run under Python 3.8.
"""

from __future__ import annotations

import email.utils
import fcntl
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from urllib.parse import urlsplit

from tpuctl.ssh.agent.worker_use import examine_present_use, job_ended_since

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

LOOK_INTERVAL = 300.0
IDLE_INTERVAL = 60.0
WARNING_TIME = 600
REQUEST_TIMEOUT = 30.0
LONGEST_RESPONSE = 1 << 20
LONGEST_LOG = 256 * 1024
# A difference between the clock of this machine and that of the service that is worth a note, in seconds.
CLOCK_TOLERANCE = 60
TAKE_OVER_TIME = 10.0
RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
NEEDED_PERMISSION = "tpu.nodes.delete"
# Seconds until the permission is tested again.
PERMISSION_INTERVAL = 3600.0
METADATA_HOST = "metadata.google.internal"
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  # a path
EXPIRY_TEXT = re.compile(r"[1-9][0-9]{8,10}")
LOOPBACK_HOSTS = {"127.0.0.1", "::1", "localhost"}


class GuardError(Exception):
    """A request failed. `kind`: permission, scope, account (the worker has none), api (no usable answer), refused."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class GuardStep:
    """What to do after a look: `wait`, `delete`, `stop` or `end`; why; and when the node ends if nothing changes."""

    def __init__(self, action: str, why: str, due: int | None = None) -> None:
        self.action, self.why, self.due = action, why, due


def next_guard_step(settings: dict[str, Any], node: dict[str, Any], now: int, idle_since: int | None) -> GuardStep:
    """Return the next step for the node as the API returned it at `now`. The first rule that matches wins."""
    if str(node.get("id") or "") != settings["id"]:
        return GuardStep("end", "the node was recreated: this guard ends")
    labels = node.get("labels") or {}
    text = labels.get("tpuctl-expires")
    expires = int(text) if isinstance(text, str) and EXPIRY_TEXT.fullmatch(text) else None
    if "tpuctl-keep" in labels:
        return GuardStep("wait", "label tpuctl-keep: never deleted")
    note = "" if text is None or expires is not None else "label tpuctl-expires=%s is not a time" % printed(text)
    due, action, why = expires, "delete", "expired"
    idle = settings.get("idle")
    if idle and idle_since is not None and (due is None or idle_since + idle < due):
        due, action, why = idle_since + idle, settings["onIdle"], "idle for %d min" % (idle // 60)
    if due is None:
        return GuardStep("wait", note or ("in use" if idle else "no time limit"))
    if now < due:
        return GuardStep("wait", note or ("idle" if why != "expired" else "not expired"), due)
    if node.get("state") != "READY":
        return GuardStep("wait", "%s, but it is %s" % (why, printed(node.get("state"))), due)
    return GuardStep(action, why, due)


def request_step(request: dict[str, Any]) -> str:
    """Return how to delete the queued resource that owns the node: `force`, `plain`, or the reason not to do so now.

    As `tpuctl down`: one that is SUSPENDING is never deleted with `force`; one of several nodes is not deleted.
    """
    specs = (request.get("tpu") or {}).get("nodeSpec") or []
    several = [spec.get("multisliceParams") or spec.get("multiNodeParams") for spec in specs]
    # A number that is missing is unknown, not one.
    nodes = sum(int(params.get("nodeCount") or 0) if params else 1 for params in several)
    state = (request.get("state") or {}).get("state")
    if nodes != 1:
        return "its queued resource owns %d nodes: only `tpuctl gc` and `tpuctl down --all-nodes` delete it" % nodes
    if state in {"SUSPENDED", "FAILED"}:
        return "plain"
    if state in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"}:
        return "force"
    return "its queued resource is %s" % printed(state)


def printed(value: Any) -> str:
    """Return a value of the API in one short line without control characters."""
    return "".join(char if char.isprintable() else "?" for char in str(value))[:100]


class TpuService:
    """The TPU API, with the token of the metadata server. `now` is the time of its last answer."""

    def __init__(self, endpoint: str) -> None:
        # The variables of Google's libraries and of gcloud.
        self.metadata = os.environ.get("GCE_METADATA_HOST") or METADATA_HOST
        self.manager = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER") or RESOURCE_MANAGER
        self.endpoint = (os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU") or endpoint).rstrip("/")
        self.now: int | None = None
        self._token = ""
        self._token_until = 0.0

    def call(self, method: str, path: str) -> dict[str, Any] | None:
        """Return the answer to a request; None for a 404 from the API. Raises `GuardError`."""
        headers = {"Authorization": "Bearer " + self.token(), "Accept": "application/json"}
        code, date, answer = send_request(self.endpoint, method, "/v2/" + path, headers)
        error = answer.get("error")
        if date is None:
            raise GuardError("api", "%s returned %d without a date" % (self.endpoint, code))
        self.now = date
        if code == 200 and error is None:
            return answer
        if not isinstance(error, dict):
            raise GuardError("api", "%s returned %d" % (self.endpoint, code))
        if code == 404 and error.get("status") == "NOT_FOUND":
            return None
        text = "%s %s: HTTP %d, %s" % (method, path, code, printed(error.get("message")))
        if code == 401:
            self._token_until = 0.0
        if code == 403 and "SCOPE" in json.dumps(error.get("details") or "").upper():
            raise GuardError("scope", text)
        raise GuardError(
            "permission" if code in {401, 403} else "api" if code == 429 or code >= 500 else "refused", text
        )

    def lacks_permission(self, project: str) -> bool:
        """Return whether the account surely may not delete nodes; false if that cannot be tested."""
        path = "/v3/projects/%s:testIamPermissions" % project
        headers = {"Authorization": "Bearer " + self.token(), "Content-Type": "application/json"}
        body = json.dumps({"permissions": [NEEDED_PERMISSION]})
        try:
            code, _, answer = send_request(self.manager.rstrip("/"), "POST", path, headers, body)
        except GuardError:
            return False
        return code == 200 and "error" not in answer and NEEDED_PERMISSION not in (answer.get("permissions") or [])

    def token(self) -> str:
        """Return a token of the worker's service account. Raises `GuardError`."""
        if time.monotonic() >= self._token_until:
            code, _, answer = send_request(
                "http://" + self.metadata, "GET", TOKEN_PATH, {"Metadata-Flavor": "Google"}, is_metadata=True
            )
            token = answer.get("access_token")
            if code == 404:
                raise GuardError("account", "this worker has no service account")
            if code != 200 or not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,8192}", token):
                raise GuardError("api", "the metadata server gave no token (HTTP %d)" % code)
            lasts = answer.get("expires_in")
            self._token = token
            self._token_until = time.monotonic() + max(0, (lasts if isinstance(lasts, int) else 0) - 60)
        return self._token


def send_request(
    origin: str, method: str, path: str, headers: dict[str, str], body: str = "", *, is_metadata: bool = False
) -> tuple[int, int | None, dict[str, Any]]:
    """Send a request, without redirects and proxies; return status, `Date` and JSON of the answer. Raises `GuardError`.

    A token goes over https, or to this machine.
    """
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if parts.scheme != "https" and not is_metadata and host not in LOOPBACK_HOSTS:
        raise GuardError("refused", "%s is not https" % printed(origin))
    maker = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = maker(host, parts.port, timeout=REQUEST_TIMEOUT)
    try:
        connection.request(method, parts.path + path, body=body or None, headers=headers)
        response = connection.getresponse()
        data = response.read(LONGEST_RESPONSE + 1)
        answer = json.loads(data) if len(data) <= LONGEST_RESPONSE else None
    except (OSError, http.client.HTTPException) as error:
        raise GuardError("api", "%s: %s" % (printed(origin), printed(error) or type(error).__name__)) from error
    except ValueError:
        answer = {} if is_metadata else None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise GuardError("api", "%s returned %d and no JSON" % (printed(origin), response.status))
    return response.status, parse_date(response.getheader("Date") or ""), answer


def parse_date(text: str) -> int | None:
    """Return the time of a `Date` header in seconds since 1970, None if it is none."""
    try:
        parsed = email.utils.parsedate_tz(text)
        return None if parsed is None else int(email.utils.mktime_tz(parsed))
    except (ValueError, TypeError, IndexError, OverflowError):  # such as a year beyond the calendar
        return None


class NodeGuard:
    """One guard: its settings, what it remembers between two looks, its log and its status."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "settings"), encoding="utf-8") as file:
            self.settings = json.load(file)
        self.service = TpuService(self.settings["endpoint"])
        default = IDLE_INTERVAL if self.settings.get("idle") else LOOK_INTERVAL
        self.interval = float(os.environ.get("TPUCTL_GUARD_INTERVAL") or default)
        self.failures = 0
        self.idle_since: int | None = None
        # When the use of this machine was examined last, by its own clock.
        self.examined_at = time.time()
        self.warned: int | None = None
        self.lacks_permission = False
        self.tested_at: float | None = None
        self.noted = ""

    def run(self) -> None:
        """Look at the node until it is gone, another one has its name, or the folder of this guard was removed."""
        self.log("started for %s, id %s" % (self.settings["node"], self.settings["id"]))
        while os.path.exists(os.path.join(self.folder, "settings")):
            pause = self.look()
            if pause is None:
                return
            time.sleep(pause)

    def look(self) -> float | None:
        """Look at the node once and act; return the pause before the next look, None at the end."""
        activity = self.activity() if self.settings.get("idle") else []
        if activity:
            self.idle_since = None
        try:
            node = self.service.call("GET", self.settings["node"])
            now = self.service.now
            if node is None or now is None:
                self.log("the node is gone: this guard ends")
                self.write_status(None, "the node is gone", ended=True)
                return None
            self.test_permission()
            if self.settings.get("idle") and not activity and self.idle_since is None:
                self.idle_since = now
            step = next_guard_step(self.settings, node, now, self.idle_since)
            self.note("; ".join([step.why, *activity]))
            if step.action == "end":
                self.write_status(step, step.why, ended=True)
                return None
            if step.action != "wait":
                self.act(step, node)
        except GuardError as error:
            self.failures += 1
            pause = min(self.interval / 10 * 2.0 ** min(self.failures - 1, 10), self.interval * 3)
            self.log("failed (%s): %s; tried again in %.0f s" % (error.kind, error, pause))
            self.write_status(None, str(error), problem=error.kind)
            return pause
        if self.failures:
            self.log("requests succeed again")
        self.failures = 0
        if self.lacks_permission:
            self.write_status(step, "it lacks the permission " + NEEDED_PERMISSION, problem="permission")
        else:
            self.write_status(step, step.why)
        left = None if step.due is None else step.due - now
        if left is not None and 0 < left <= WARNING_TIME and self.warned != step.due:
            self.warned = step.due
            self.warn(step, left)
        if left is None or left <= 0:
            return self.interval
        return min(self.interval, max(1.0, left - WARNING_TIME if left > WARNING_TIME else left))

    def act(self, step: GuardStep, node: dict[str, Any]) -> None:
        """Delete or stop the node. Raises `GuardError`."""
        name = self.settings["node"]
        self.log("%s: %s is sent" % (step.why, step.action))
        owner = node.get("queuedResource")
        if step.action == "stop":
            self.service.call("POST", name + ":stop")
        elif not owner:
            self.service.call("DELETE", name)
        else:
            prefix = name.partition("/nodes/")[0] + "/queuedResources/"
            path = prefix + str(owner).rpartition("/")[2]
            request = self.service.call("GET", path)
            how = "force" if request is None else request_step(request)
            if request is None:
                self.service.call("DELETE", name)
            elif how in {"force", "plain"}:
                self.service.call("DELETE", path + ("?force=true" if how == "force" else ""))
            else:
                raise GuardError("refused", how)
        self.log("the %s was accepted" % step.action)

    def warn(self, step: GuardStep, left: int) -> None:
        """Tell all terminals of this machine that the node ends soon."""
        name = self.settings["node"].rpartition("/")[2]
        what = "stopped" if step.action == "stop" else "deleted"
        text = "tpuctl: this node, %s, is %s in %d min" % (name, what, max(1, left // 60))
        text += (
            ": `tpuctl extend %s 2h` gives it more time" % name if step.why == "not expired" else " because it is idle"
        )
        self.log("warned all terminals: " + text)
        program = shutil.which("wall")
        if program:
            try:
                subprocess.run([program, text], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
            except (OSError, subprocess.SubprocessError):
                pass

    def test_permission(self) -> None:
        """Test from time to time whether the account may delete nodes, long before that is needed."""
        now = time.monotonic()
        if self.tested_at is None or now - self.tested_at >= PERMISSION_INTERVAL:
            self.tested_at = now
            before = self.lacks_permission
            self.lacks_permission = self.service.lacks_permission(self.settings["node"].split("/")[1])
            if self.lacks_permission != before:
                has = "lacks" if self.lacks_permission else "has"
                self.log("the service account %s the permission %s" % (has, NEEDED_PERMISSION))

    def activity(self) -> list[str]:
        """Return what uses this machine, or did since the last look, examined as root if sudo needs no password."""
        words = [sys.executable, os.path.join(self.folder, "guard.py"), "--activity", repr(self.examined_at)]
        self.examined_at = time.time()
        if os.geteuid() != 0:
            root = "TPUCTL_DEVICE_ROOT=" + os.environ.get("TPUCTL_DEVICE_ROOT", "")
            words = ["sudo", "-n", "env", root, "HOME=" + os.path.expanduser("~"), *words]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
            found = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            found = ["the machine cannot be examined: %s" % printed(error)]
        return list(found)

    def note(self, text: str) -> None:
        """Log what differs from the note before."""
        if text != self.noted:
            self.noted = text
            self.log(text)

    def log(self, text: str) -> None:
        """Append a line to the log, with the time of the service if it is known, and drop the older half of a long one."""
        path = os.path.join(self.folder, "log")
        at = time.time() if self.service.now is None else self.service.now
        line = "%s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), text)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
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
            # The time of a sandbox is not that of its machine.
            "clockOffset": None if now is None or "TPUCTL_DEVICE_ROOT" in os.environ else int(time.time()) - now,
        }
        replace_file(os.path.join(self.folder, "status"), json.dumps(state))


def replace_file(path: str, text: str) -> None:
    """Write a file of its owner atomically, if possible."""
    scratch = path + ".new"
    try:
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.rename(scratch, path)
    except OSError:
        pass


def guard_main() -> None:
    """Run the guard of this folder, or print what uses this machine."""
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    if sys.argv[1:2] == ["--activity"]:
        with open(os.path.join(folder, "settings"), encoding="utf-8") as file:
            settings = json.load(file)
        in_use, unknown = examine_present_use(settings["devices"], settings["lockFile"])
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
                return
            time.sleep(0.1)
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d" % os.getpid(), 0)
    NodeGuard(folder).run()
