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
def node(s, name="demo", **k):
    k.setdefault("age", timedelta(hours=1)); k.setdefault("zone",ZONE); return s.add_node(name, **k)
def test_create(tpuctl, sandbox):
    C=("create",*UP[1:])
    show("create", tpuctl(*C)); show("again", tpuctl(*C)); print(sandbox.changes())
    show("nowait", tpuctl("create","two","--type","v4-8","--zone",ZONE,"--no-wait"));
    show("notype", tpuctl("create","two","--zone",ZONE));
    show("nozone", tpuctl("create","two","--type","v4-8"));
    sandbox.fault("drop-after", method="*.nodes.create")
    show("drop", tpuctl("create","three","--type","v4-8","--zone",ZONE));
    sandbox.fault("operation-error")
    show("stock", tpuctl("create","four","--type","v4-8","--zone",ZONE));
    sandbox.fault("http-error", method="*.nodes.*", status=503, count=0)
    show("503", tpuctl("create","five","--type","v4-8","--zone",ZONE));
    print(sandbox.changes())
def test_wait(tpuctl, sandbox):
    show("absent", tpuctl("wait","demo","--zone",ZONE)); show("absent any", tpuctl("wait","demo")); show("absent gone", tpuctl("wait","demo","--for","gone"))
    node(sandbox,state="STARTING")
    show("healthy", tpuctl("wait","demo","--for","healthy"))
    show("stopped", tpuctl("wait","demo","--for","stopped", "--timeout","1m"))
    node(sandbox,"p",state="PREEMPTED"); show("preempted", tpuctl("wait","p"))
    node(sandbox,"s",state="STOPPED"); show("stopped", tpuctl("wait","s"))
    node(sandbox,"d",state="DELETING"); show("deleting", tpuctl("wait","d")); show("deleting gone", tpuctl("wait","d","--for","gone"))
    show("json", tpuctl("wait","demo","--for","ready","-o","json","--events","-"))
def test_startstop(tpuctl, sandbox):
    node(sandbox,"a",state="STOPPED"); show("start", tpuctl("start","a")); show("start again", tpuctl("start","a")); show("stop", tpuctl("stop","a")); show("stop again", tpuctl("stop","a"))
    node(sandbox,"spot",state="STOPPED",schedulingConfig={"spot":True}); show("start spot", tpuctl("start","spot")); show("anyway", tpuctl("start","spot","--anyway"))
    node(sandbox,"slice",acceleratorType="v4-16"); show("stop slice", tpuctl("stop","slice")); show("anyway", tpuctl("stop","slice","--anyway"))
    sandbox.add_queued_resource("qr",node_ids=("q",)); node(sandbox,"q",queued_resource="qr"); show("stop q", tpuctl("stop","q"))
    node(sandbox,"spot2",schedulingConfig={"spot":True}); show("stop spot", tpuctl("stop","spot2"))
    show("creating", tpuctl("start","nix"))
    print(sandbox.changes())
    sandbox.fault("operation-error", method="*.start"); show("cap", tpuctl("start","a"))
    for k in ("drop-before","drop-after"):
        sandbox.fault(k, method="*.start"); show(k, tpuctl("start","a"))
        sandbox.fault(k, method="*.stop"); show(k, tpuctl("stop","a"))
    print(sandbox.changes())
def test_reset(tpuctl, sandbox, fake_ssh, tmp_path):
    node(sandbox); show("reset tty", tpuctl("reset","demo")); show("no", tpuctl("reset","demo",stdin="\n")); show("yes", tpuctl("reset","demo", stdin="y\n"))
    node(sandbox,"slice",acceleratorType="v4-16"); fake_ssh(f'echo "$@" >> {tmp_path}/log; exit 0'); show("reset slice", tpuctl("reset","slice","--yes"))
    print((tmp_path/"log").read_text()[-900:])
    show("restart slice", tpuctl("reset","slice","--mode","restart","--yes"))
    fake_ssh("exit 255");  show("reset silent slice", tpuctl("reset","slice","--yes", "--timeout", "10m"))
    show("recreate", tpuctl("reset","slice","--mode","recreate"))
    fake_ssh("exit 0"); show("recreate", tpuctl("reset","slice","--mode","recreate","--yes"))
    node(sandbox,"c",state="CREATING",age=timedelta()); show("creating", tpuctl("reset","c","--yes"))
    node(sandbox,"p",state="PREEMPTED"); show("preempted", tpuctl("reset","p","--yes"))
    show("preempted recreate", tpuctl("reset","p","--yes","--mode","recreate"))
    print(sandbox.changes())
def test_down(tpuctl, sandbox):
    show("gone", tpuctl("down","demo","--yes")); show("delete gone", tpuctl("delete","demo")); show("ignore", tpuctl("delete","demo","--ignore-not-found"))
    node(sandbox); show("pipe", tpuctl("down","demo")); show("ci", tpuctl("down","demo",stdin="y\n",CI="1")); show("no", tpuctl("down","demo",stdin="n\n")); show("elsewhere", tpuctl("down","demo","--zone","us-central1-a"))
    print(sandbox.changes())
    show("yes", tpuctl("down","demo",stdin="y\n"))
    sandbox.add_queued_resource("qr",node_ids=("q",)); node(sandbox,"q",queued_resource="qr"); show("q", tpuctl("down","q","--yes"))
    sandbox.add_queued_resource("dead",state="SUSPENDED",node_ids=("q2",)); show("q2", tpuctl("down","q2","--yes"))
    sandbox.add_queued_resource("multi",node_ids=("m0","m1")); node(sandbox,"m0",queued_resource="multi"); node(sandbox,"m1",queued_resource="multi"); show("m", tpuctl("down","m0","--yes")); show("m", tpuctl("down","m0","--yes","--all-nodes"))
    print(sandbox.changes()); show("left", tpuctl("list"))
    sandbox.fault("unreachable",zone="europe-west4-a",count=0); show("unreach", tpuctl("down","demo","--yes"))
def test_down2(tpuctl, sandbox):
    sandbox.fault("http-error",status=403,count=0); show("403", tpuctl("down","demo","--yes")); show("403", tpuctl("down","demo","--yes","--zone",ZONE))
