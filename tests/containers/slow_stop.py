"""
A worker that needs SIGTERM and CHECKPOINT_SECONDS. It leaves a child in a session of its own and an orphan behind, on
purpose; they hold its rank's lock like itself, so that a next attempt that starts beside them says so.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

folder, rank, attempt = os.environ["DIARY"], os.environ["RANK"], os.environ["ASTRAEUS_ATTEMPT"]
lines = os.open(f"{folder}/lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
lock = os.open(f"{folder}/rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)


def say(word: str) -> None:
    os.write(lines, f"{rank} {attempt} {os.getpid()} {word} {time.time()}\n".encode())


def stop(signum: int, _frame: object) -> None:
    say("asked")
    print("got", signum, "writing checkpoint", flush=True)
    time.sleep(float(os.environ.get("CHECKPOINT_SECONDS", "1")))
    print("checkpoint written", flush=True)
    say("end")
    sys.exit(3)


try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("overlap")
os.set_inheritable(lock, True)
signal.signal(signal.SIGTERM, stop)
subprocess.Popen(["sleep", "100000"], start_new_session=True, close_fds=False)
subprocess.run(["sh", "-c", "sleep 100000 & exec true"], close_fds=False, check=True)
say("start")
while True:
    time.sleep(1)
