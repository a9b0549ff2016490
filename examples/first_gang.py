"""
A collective between the workers of a gang, with nothing but Python: ring all-reduce over TCP, its sum checked.

Everything it needs to know comes from the environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as for PyTorch.
The leader collects every worker's address at MASTER_PORT and hands out the list; then each worker sends to the next
rank and receives from the one before, 2 * (WORLD_SIZE - 1) times a round, until all of them hold the sum.

Set ROUNDS and PAUSE_S in the run's `env` for a longer or a faster run.
"""

import json
import os
import socket
import sys
import threading
import time
from array import array
from contextlib import suppress

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
LEADER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
ATTEMPT = os.environ.get("ASTRAEUS_ATTEMPT", "0")

ROUNDS = int(os.environ.get("ROUNDS", "50"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0.25"))
CHUNK = 4096  # numbers that each worker owns of the vector

MEETING_TIMEOUT_S = 60.0
ROUND_TIMEOUT_S = 60.0

# A worker that loses a peer waits before it ends, so that the one at fault is the one that is reported first. The gang
# is stopped and started again in the meantime.
LOST_PEER_WAIT_S = 10.0


def say(sentence):
    print(f"[rank {RANK}] {sentence}", flush=True)


def connect(address):
    """The peer may not listen yet: workers start within milliseconds of each other, not at once."""
    deadline = time.monotonic() + MEETING_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=ROUND_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def meet(listener):
    """The addresses of all workers, by rank: everybody tells the leader its own, the leader tells everybody."""
    port = listener.getsockname()[1]
    if RANK == 0:
        with socket.create_server(("", LEADER[1])) as door:
            door.settimeout(MEETING_TIMEOUT_S)
            peers = {0: (LEADER[0], port)}
            connections = []
            while len(peers) < WORLD:
                connection, (host, _) = door.accept()
                connections.append(connection)
                hello = json.loads(connection.makefile().readline())
                peers[hello["rank"]] = (host, hello["port"])
            table = [peers[rank] for rank in range(WORLD)]
            for connection in connections:
                connection.sendall(json.dumps(table).encode() + b"\n")
                connection.close()
            return table
    with connect(LEADER) as connection:
        connection.sendall(json.dumps({"rank": RANK, "port": port}).encode() + b"\n")
        return [tuple(address) for address in json.loads(connection.makefile().readline())]


def exchange(right, left, piece):
    """Send to the next worker while receiving as much from the one before."""
    sender = threading.Thread(target=send, args=(right, piece.tobytes()), daemon=True)
    sender.start()
    received = array("q")
    received.frombytes(receive(left, len(piece) * piece.itemsize))
    sender.join()
    return received


def send(right, data):
    with suppress(OSError):  # the receiving side of this worker notices as well, and tells
        right.sendall(data)


def receive(left, size):
    data = bytearray()
    while len(data) < size:
        piece = left.recv(size - len(data))
        if not piece:
            raise ConnectionError("it closed the connection")
        data += piece
    return bytes(data)


def all_reduce(right, left, vector):
    """Sum *vector* over all workers, in place: chunks go round once to be summed, once more to be handed out."""

    def part(number):
        start = (number % WORLD) * CHUNK
        return slice(start, start + CHUNK)

    for step in range(WORLD - 1):
        received = exchange(right, left, vector[part(RANK - step)])
        mine = part(RANK - step - 1)
        vector[mine] = array("q", (a + b for a, b in zip(vector[mine], received, strict=True)))
    for step in range(WORLD - 1):
        vector[part(RANK - step)] = exchange(right, left, vector[part(RANK - step + 1)])


def main():
    listener = socket.create_server(("", 0))
    listener.settimeout(MEETING_TIMEOUT_S)
    peers = meet(listener)
    say(f"attempt {ATTEMPT}: {WORLD} workers have met: " + ", ".join(host for host, _ in peers))
    right = connect(peers[(RANK + 1) % WORLD])
    left, _ = listener.accept()
    left.settimeout(ROUND_TIMEOUT_S)

    total = WORLD * (WORLD + 1) // 2
    for number in range(1, ROUNDS + 1):
        vector = array("q", ((RANK + 1) * (number + i % 7) for i in range(WORLD * CHUNK)))
        try:
            all_reduce(right, left, vector)
        except OSError as error:
            say(f"round {number}: worker {(RANK - 1) % WORLD} is gone: {error}")
            time.sleep(LOST_PEER_WAIT_S)
            return 1
        expected = array("q", (total * (number + i % 7) for i in range(WORLD * CHUNK)))
        if vector != expected:
            say(f"round {number}: the sum is wrong")
            return 1
        if number == 1 or number % 10 == 0:
            say(f"round {number} of {ROUNDS}: the sum of {WORLD * CHUNK} numbers over {WORLD} workers is right")
        time.sleep(PAUSE_S)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
