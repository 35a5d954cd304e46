import sys,time,hashlib,json
from tests.running import *
def test_x(pod):
    def go(*a, **k):
        t=time.time(); r=pod.run(*a, **k); print(a, r, "%.1f s"%(time.time()-t)); print(pod.texts("count"), pod.left(), [pod.links(w) for w in range(8)]); 
        for path in pod.root.glob("*/count"): path.unlink()
    pod.plan({2:[REFUSED],3:[NO_KEY],5:[{"hangs":1}]})
    go("--connect-timeout","2s","--","echo x >>count")
    pod.plan({2:[REFUSED],3:[NO_KEY],5:[{"hangs":1}]})
    go("--connect-timeout","2s","--partial","--","echo x >>count; echo $TPUCTL_WORKER_ID")
    pod.plan({2:[{"environ":{"PATH":"/nonexistent"}}], 3:[{"shell":"/bin/false"}], 4:[{"shell": "/bin/echo"}]})
    go("--","echo x >>count")
    pod.plan({})
    d=pod.home(2)/".tpuctl"
    import shutil; shutil.rmtree(d); d.mkdir(); (d/"jobs").write_text("")
    go("--","echo x >>count")
    (d/"jobs").unlink()
    go("-w","/nonexistent","--worker","1-2","--","echo x >>count")
    go("-w","/nonexistent","--worker","1","--","echo x >>count")
    go("--worker","1","--name","a","-d", "--","sleep 60")
    go("--name","a", "--","echo x >>count")
    go("--worker", "0", "--","kill -9 $$")
    go("--worker", "0-2", "--","exit $TPUCTL_WORKER_ID")
    go("--worker", "0-2", "--","kill -11 $$")
    go("--worker", "0-2", "--fail-fast", "--","[ $TPUCTL_WORKER_ID = 1 ] && exit 3; sleep 50 & sleep 60")
    go("--worker", "0-2", "--timeout", "0.7s", "--","sleep 50 & sleep 60")
    go("--worker", "0-2", "-o", "json", "--","echo a; echo b >&2; exit 4")
    assert 0
