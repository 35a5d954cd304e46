import os,sys,time,signal,subprocess,pty,select
from pathlib import Path
from tests.running import *
def test_x(pod):
    D="/tmp/rt_disk"
    pod.plan({0:[{"environ":{"HOME":D}}]})
    print(1, pod.run("--worker","0","--","head -c 1000000 /dev/zero; echo $? >&2"), os.listdir(D+"/.tpuctl/jobs"))
    os.system(f"dd if=/dev/zero of={D}/fill bs=1k count=100000 2>/dev/null; df {D} | tail -1")
    print(2, pod.run("--worker","0","--","echo hi; exit 4"), os.listdir(D+"/.tpuctl/jobs"))
    print(2, pod.run("--worker","0-1","--","echo hi >> ~/count; exit 4"), os.listdir(D+"/.tpuctl/jobs"))
    os.unlink(D+"/fill")
    # fills up while it runs
    print(3, pod.run("--worker","0","--",f"echo a; dd if=/dev/zero of={D}/fill bs=1k count=100000 2>/dev/null; exit 4"), os.listdir(D+"/.tpuctl/jobs"))
    os.unlink(D+"/fill")
    print(4, pod.run("--worker","0","--timeout","1s","--",f"dd if=/dev/zero of={D}/fill bs=1k count=100000 2>/dev/null; sleep 60 & sleep 60"), os.listdir(D+"/.tpuctl/jobs"))
    os.unlink(D+"/fill")
    t=time.time(); p=pod.start("--worker","0-1","--","yes | head -c 30000000"); time.sleep(3); n=0
    while True:
        d=p.stdout.read(1<<20)
        if not d: break
        n+=len(d)
    print(5, n, p.wait(), p.stderr.read(), time.time()-t); 
    # pty
    pid, fd = pty.fork()
    if pid==0:
        os.chdir(pod.tpuctl.folder)
        os.execve(sys.executable,[sys.executable,"-m","tpuctl","run","pod","--worker","0-1","--","trap 'echo INT' INT; echo ready; while :; do sleep 0.1; done"],{"PATH":os.environ["PATH"],"TERM":"xterm",**pod.tpuctl.environ})
    shown=b""
    def rd(until):
        nonlocal shown
        end=time.time()+15
        while until not in shown and time.time()<end:
            if select.select([fd],[],[],.5)[0]:
                try: shown+=os.read(fd,4096)
                except OSError: break
    rd(b"ready"); time.sleep(.3); os.write(fd,b"\x03"); rd(b"INT sent"); time.sleep(.3); os.write(fd,b"\x03"); rd(b"QUIT sent"); os.write(fd,b"\x03"); rd(b"interrupted"); time.sleep(.3)
    print(6, shown.decode(), os.waitpid(pid,0)[1]>>8)
    assert 0
