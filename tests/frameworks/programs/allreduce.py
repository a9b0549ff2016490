"""Run by torchrun: an all-reduce over Gloo whose result every process checks. Prints one line of JSON."""

import json
import os
import socket

import torch
import torch.distributed as dist

SIZE = 4096


def own_addresses() -> dict[str, str]:
    """What a program finds when it looks for itself by name."""
    name = socket.gethostname()
    return {"name": name, "by_name": socket.gethostbyname(name), "by_fqdn": socket.gethostbyname(socket.getfqdn())}


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    values = torch.full((SIZE,), float(rank + 1))
    dist.all_reduce(values)
    right = bool((values == size * (size + 1) / 2).all())
    found = {"rank": rank, "size": size, "right": right, "sum": values[0].item(), "torch": torch.__version__}
    found |= {name: os.environ.get(name) for name in ("LOCAL_RANK", "MASTER_ADDR", "GROUP_RANK")}
    print(json.dumps(found | own_addresses()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
