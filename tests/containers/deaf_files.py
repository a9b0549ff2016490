"""
A file server that stops answering: a FUSE file system with one file, `data`, whose reads are taken and never answered.
Who reads waits in the kernel, and does not die of SIGKILL, until the server ends.

    python deaf_files.py FOLDER     serves it until it is killed
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INIT, OPENDIR = 1, 2, 3, 14, 15, 18, 26, 27
NO_ANSWER = (FORGET, READ)
ROOT, FILE = 1, 2
ENOSYS, ENOENT = 38, 2
NOSUID_NODEV = 2 | 4

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")


def attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o644
    return struct.pack("<6Q10I", node, 1 << 20, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """What to say; a number: the error."""
    if opcode == INIT:
        major, minor, ahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack("<4I2H2I2H8I", major, min(minor, 31), ahead, 0, 12, 10, 65536, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"data":
            return ENOENT
        return struct.pack("<4Q2I", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 1, 0)  # direct I/O: each read comes here
    return b"" if opcode == RELEASE else ENOSYS


def serve(folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"deaf", folder.encode(), b"fuse", NOSUID_NODEV, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    print("serving", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:  # it was unmounted
            return
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in NO_ANSWER:
            print(f"not answered: {opcode}", flush=True)
            continue
        said = answer(opcode, node, request[_IN.size :])
        body, error = (b"", -said) if isinstance(said, int) else (said, 0)
        os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


if __name__ == "__main__":
    serve(sys.argv[1])
