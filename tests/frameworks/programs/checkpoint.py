"""A worker that writes a checkpoint when it is asked to stop, and takes its time for it."""

import os
import signal
import sys
import time

me = f"rank {os.environ['RANK']} of attempt {os.environ['ASTRAEUS_ATTEMPT']}"


def stop(number: int, _frame: object) -> None:
    time.sleep(2)
    print(f"{me}: checkpoint written after signal {number}", flush=True)
    sys.exit(3)


signal.signal(signal.SIGTERM, stop)
print(f"{me}: training", flush=True)
while True:
    time.sleep(1)
