import pytest
from tests.conftest import Console, Sandbox
ZONE="us-central2-b"
UP = ("up", "demo", "--type", "v4-8", "--zone", "us-central2-b")
from datetime import timedelta
def show(label, r):
    print("=====", label); print("OUT", repr(r[0])); print(r[1]); print("CODE", r[2])
@pytest.fixture(params=["in-process"])
def face(request, sandbox):
    yield {"TPUCTL_SANDBOX": "1"}
def node(s, **k):
    k.setdefault("age", timedelta(hours=1)); return s.add_node("demo", zone="us-central2-b", **k)
@pytest.mark.parametrize("state", "REIMAGING HIDING BRANDNEW".split())
def test_state(tpuctl, sandbox, state):
    node(sandbox, state=state)
    show(state, tpuctl(*UP)); print(sandbox.changes())
def test_many(tpuctl, sandbox, fake_ssh, clock):
    node(sandbox, acceleratorType="v4-16")
    show("differs", tpuctl(*UP)); print(sandbox.changes())
    show("replace", tpuctl(*UP, "--replace")); print(sandbox.changes())
    show("replace tty no", tpuctl(*UP, "--replace",stdin="n\n")); print(sandbox.changes())
    show("replace yes", tpuctl(*UP, "--replace", "--yes")); print(sandbox.changes())
def test_unhealthy(tpuctl, sandbox):
    sandbox.fault("unhealthy", count=1)
    show("unhealthy once", tpuctl(*UP)); print(sandbox.changes())
def test_unhealthy2(tpuctl, sandbox):
    sandbox.fault("unhealthy", count=0)
    show("unhealthy 0", tpuctl(*UP, "--max-restarts", "1")); print(sandbox.changes())
def test_unhealthy3(tpuctl, sandbox):
    sandbox.fault("unhealthy", count=3)
    show("unhealthy recreate", tpuctl(*UP, "--max-restarts", "1", "--repair", "recreate", "--timeout","2h")); print(sandbox.changes())
def test_unhealthy4(tpuctl, sandbox):
    node(sandbox, health="UNHEALTHY_TENSORFLOW")
    show("in use", tpuctl(*UP)); print(sandbox.changes())
    show("in use yes", tpuctl(*UP, "--yes")); print(sandbox.changes())
def test_hang(tpuctl, sandbox):
    sandbox.fault("hang", state="CREATING")
    show("hang", tpuctl(*UP)); print(sandbox.changes())
def test_stock(tpuctl, sandbox):
    sandbox.fault("operation-error")
    show("stock", tpuctl(*UP)); print(sandbox.changes())
    sandbox.fault("quota")
    show("quota", tpuctl(*UP)); print(sandbox.changes())
    sandbox.fault("operation-error", code=13)
    show("13", tpuctl(*UP)); print(sandbox.changes())
@pytest.mark.parametrize("kind", ["drop-before", "drop-after"])
def test_drop(tpuctl, sandbox, kind):
    sandbox.fault(kind, method="*.nodes.create")
    show(kind, tpuctl(*UP)); print(sandbox.changes())
def test_503(tpuctl, sandbox):
    tpuctl(*UP, "--no-wait")
    sandbox.fault("http-error", method="*.nodes.get", status=503, count=12)
    sandbox.fault("http-error", method="*.nodes.get", status=429, count=12)
    show("503", tpuctl("wait", "demo", "--zone", ZONE)); print(sandbox.changes())
def test_503ever(tpuctl, sandbox):
    sandbox.fault("http-error", method="*.operations.get", status=503, count=0)
    show("503", tpuctl(*UP)); print(sandbox.changes())
def test_401(tpuctl, sandbox):
    sandbox.fault("unauthenticated", method="*.operations.get", count=0)
    show("401", tpuctl(*UP)); print(sandbox.changes())
def test_403(tpuctl, sandbox):
    sandbox.fault("http-error", status=403, method="*.operations.get", count=0)
    show("403", tpuctl(*UP)); print(sandbox.changes())
def test_zone(tpuctl, sandbox):
    sandbox.fault("unreachable", zone=ZONE, count=0)
    show("zone", tpuctl(*UP, "--timeout", "5m")); print(sandbox.changes())
    show("zone", tpuctl("up", "demo")); print(sandbox.changes())
def test_journal(tpuctl, sandbox):
    show("nothing", tpuctl("up", "demo", "--zone", ZONE)); print(sandbox.changes())
    tpuctl(*UP, "--spot"); tpuctl("down", "demo", "--yes")
    sandbox.advance(hours=3)
    show("pipe", tpuctl("up", "demo")); print(sandbox.changes())
    show("no", tpuctl("up", "demo", stdin="n\n")); print(sandbox.changes())
    show("yes", tpuctl("up", "demo", "--yes")); print(sandbox.changes())
def test_timeout(tpuctl, sandbox):
    show("0", tpuctl(*UP, "--timeout", "0")); print(sandbox.changes())
    show("bad", tpuctl(*UP, "--timeout", "soon")); print(sandbox.changes())
    show("forever", tpuctl(*UP, "--timeout", "forever")); print(sandbox.changes())
def test_key(tpuctl, sandbox, fake_ssh, tmp_path):
    node(sandbox)
    flag=tmp_path/"n"
    fake_ssh(f'echo x >> {flag}; [ $(wc -l < {flag}) -gt 3 ] || {{ echo "ada@x: Permission denied (publickey)." >&2; exit 255; }}')
    show("key", tpuctl(*UP)); print(sandbox.changes())
    print(tpuctl("status","demo","-o","json")[0][:1500])
def test_silent(tpuctl, sandbox, fake_ssh, tmp_path):
    fake_ssh("exit 255")
    show("silent", tpuctl(*UP, "--timeout","2h")); print(sandbox.changes())
