import sys,time
from tests.running import *
def test_x(pod):
    for i in range(6):
        pod.plan({w: [{"received": i*8+w}, {}] for w in range(8)})
        t=time.time()
        r=pod.run("--", "echo $TPUCTL_WORKER_ID; echo x >>count%d"%i); print(i, r[0]==0 or sorted(r[0].split("\n"))==['']+[f"[{w}] {w}" for w in range(8)], r[2], "".join(r[1:2]) if i in (2,) else len(r[1]), time.time()-t, r[0] if r[2] else "")
        print(pod.left(), [pod.links(w) for w in range(8)], set(pod.texts("count%d"%i).values()))
    pod.run("--worker", "0", "--", "true")
    assert 0
