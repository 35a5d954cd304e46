import sys,time,hashlib,json,signal,os,subprocess
from tests.running import *
TRAP="trap 'echo INT >>got' INT; trap 'echo QUIT >>got' QUIT; trap 'echo TERM >>got' TERM; touch ready; while :; do sleep 0.05; done"
def test_x(pod):
    def until(name, n):
        end=time.time()+20
        while len(pod.texts(name))<n: assert time.time()<end; time.sleep(.02)
    def fin(p, t):
        p.wait(60); out=b''; err=p.stderr.read(); print(p.returncode, out[-500:], err.decode()[-1500:], "%.1f"%(time.time()-t), pod.texts("got"), pod.left())
        for n in ("got","ready"):
            for path in pod.root.glob("*/"+n): path.unlink()
    p=pod.start("--worker","0-1","--","touch ready; yes; echo $? > got"); until("ready",2);t=time.time()
    p.stdout.read(1000); p.stdout.close(); fin(p,t)
    # stdin
    data=os.urandom(5_000_000)
    pod.plan({0:[{"said":2_000_000},{"said":1_500_001},{}]})
    (pod.root/"data").write_bytes(data)
    t=time.time(); p=pod.start("--worker","0","--","cat > got2; cksum got2", stdin=open(pod.root/"data","rb")); fin(p,t); print((pod.home(0)/"got2").read_bytes()==data, pod.links(0))
    pod.plan({0:[{"said":2_000_000},{"said":1_500_001},{}]})
    t=time.time(); p=pod.start("--worker","0","--","cat > got2; cksum got2", stdin=subprocess.PIPE); print(p.communicate(data), p.returncode); print((pod.home(0)/"got2").read_bytes()==data, pod.links(0), time.time()-t)
    pod.plan({})
    t=time.time(); p=pod.start("--worker","0","--","cat", stdin=subprocess.PIPE); print(p.communicate(data)[0]==data, p.returncode, time.time()-t)
    t=time.time(); p=pod.start("--worker","0","--","head -c 10 >/dev/null; echo done", stdin=subprocess.PIPE); print(p.communicate(data), p.returncode, time.time()-t)
    t=time.time(); p=pod.start("--worker","0","--","echo done", stdin=subprocess.PIPE); print(p.communicate(data), p.returncode, time.time()-t)
    t=time.time(); p=pod.start("--","echo done", stdin=open(pod.root/"data","rb")); print(p.communicate(), p.returncode, time.time()-t)
    t=time.time(); p=pod.start("-n","--worker","0","--","cat; echo done", stdin=open(pod.root/"data","rb")); print(p.communicate(), p.returncode, time.time()-t)
    assert 0
