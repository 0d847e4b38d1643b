# SPDX-License-Identifier: Apache-2.0
"""What the ingest bench measures with: CPU accounts, the peer (nginx), a sink that discards, and the floor (fio, iperf3).

CPU of a process is what /proc/PID/stat says: user and system time of all its threads, those of io_uring's workers included, which are
threads of the process. Kernel threads that write a page cache back (kworker, jbd2) are nobody's: `kernel_seconds` gives the sum of all of
them, whoever made them run, so on a machine with other work it is an upper bound.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from node import free_ports, wait_for

TICK = os.sysconf("SC_CLK_TCK")

NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_max_body_size 0;
  client_body_temp_path {folder}/tmp;
  server {{
    listen 127.0.0.1:{port};
    location / {{ root {folder}/www; dav_methods PUT DELETE; create_full_put_path on; dav_access user:rw; }}
  }}
}}
"""

SINK = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
buffer = memoryview(bytearray(1 << 20))
while True:
    conn, _ = listener.accept()
    got = conn.recv_into(buffer)
    head, _, body = bytes(buffer[:got]).partition(b"\\r\\n\\r\\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\\r\\n")[1:])
    left = int(fields.get(b"content-length", 0)) - len(body)
    if b"expect" in fields:
        conn.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
    while left > 0 and (got := conn.recv_into(buffer)):
        left -= got
    conn.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    conn.close()
"""


def stat_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def cpu_seconds(pids):
    return sum(stat_seconds(pid) for pid in pids)


def kernel_seconds():
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, fields = file.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:  # It has ended meanwhile.
            continue
        fields = fields.split()
        if fields[1] == "2" and name.startswith(("kworker", "jbd2")):
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def thread_ns(pid):
    """ns on CPU by thread name."""
    times = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as name, open(f"/proc/{pid}/task/{task}/schedstat") as stat:
            key = name.read().strip()
            times[key] = times.get(key, 0) + int(stat.read().split()[0])
    return times


class Nginx:
    def __init__(self, folder):
        self.folder = tempfile.mkdtemp(prefix="nginx-", dir=folder)
        os.chmod(self.folder, 0o777)
        for name in ("www", "tmp"):
            os.mkdir(os.path.join(self.folder, name))
            os.chmod(os.path.join(self.folder, name), 0o777)
        (self.port,) = free_ports(1)
        config = os.path.join(self.folder, "nginx.conf")
        with open(config, "w") as file:
            file.write(("user root;\n" if os.getuid() == 0 else "") + NGINX.format(folder=self.folder, port=self.port))
        self.process = subprocess.Popen(["nginx", "-p", self.folder, "-e", self.folder + "/error.log", "-c", config],
                                        stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        wait_for(lambda: subprocess.run(["curl", "-s", "-o", "/dev/null", self.url]).returncode == 0, "nginx")

    def pids(self):
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children) as file:
            return [self.process.pid, *map(int, file.read().split())]

    def forget(self):
        """Deletes what was put, so that each PUT meets the same state: a new file. Out of the way first: it may still be writing."""
        old = tempfile.mkdtemp(dir=self.folder)
        os.rename(os.path.join(self.folder, "www"), os.path.join(old, "www"))
        os.mkdir(os.path.join(self.folder, "www"))
        os.chmod(os.path.join(self.folder, "www"), 0o777)
        shutil.rmtree(old, ignore_errors=True)

    def sync(self, name):
        """What nginx leaves to be done until the object is durable; returns (CPU of the caller, wall)."""
        begin, cpu = time.monotonic(), time.thread_time()
        fd = os.open(os.path.join(self.folder, "www", name), os.O_RDWR)
        os.fsync(fd)
        os.close(fd)
        return time.thread_time() - cpu, time.monotonic() - begin

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Sink:
    """Takes a PUT and throws it away: what the client and the loopback can do at best."""

    def __init__(self):
        (port,) = free_ports(1)
        self.process = subprocess.Popen([sys.executable, "-c", SINK, str(port)])
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: subprocess.run(["curl", "-s", "-o", "/dev/null", self.url]).returncode == 0, "the sink")

    def pids(self):
        return [self.process.pid]

    def close(self):
        self.process.kill()
        self.process.wait()


def fio(folder, mib):
    """(CPU, wall) of writing `mib` straight to a file that was written before; the median of three."""
    target = os.path.join(folder, "fio.dat")
    command = ["fio", "--name=floor", f"--filename={target}", "--rw=write", "--bs=1M", "--iodepth=8", f"--size={mib}M",
               "--ioengine=io_uring", "--direct=1", "--end_fsync=1", "--output-format=json"]
    subprocess.run(command, check=True, capture_output=True)  # The file's first pass.
    runs = []
    for _ in range(3):
        job = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["jobs"][0]
        wall = job["write"]["runtime"] / 1000
        runs.append(((job["usr_cpu"] + job["sys_cpu"]) / 100 * wall, wall))
    os.unlink(target)
    return tuple(map(statistics.median, zip(*runs)))


def iperf3(mib):
    """(CPU of the receiver, wall) of `mib` over loopback, discarded; the median of three."""
    runs = []
    for _ in range(3):
        (port,) = free_ports(1)
        server = subprocess.Popen(["iperf3", "-s", "-1", "-p", str(port)], stdout=subprocess.DEVNULL)
        wait_for(lambda p=port: subprocess.run(["ss", "-Hltn", f"sport = :{p}"], capture_output=True).stdout, "iperf3")
        end = json.loads(subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", str(port), "-n", f"{mib}M", "-J"], check=True,
                                        capture_output=True, text=True).stdout)["end"]
        server.wait()
        wall = end["sum_received"]["seconds"]
        runs.append((end["cpu_utilization_percent"]["remote_total"] / 100 * wall, wall))
    return tuple(map(statistics.median, zip(*runs)))
