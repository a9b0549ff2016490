"""The all-reduce of allreduce.py where there is no GPU: Gloo, over TCP. torchrun starts it in a gang."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(64 * 1024 * 1024 // 4)  # 64 MiB
for _ in range(2):
    dist.all_reduce(x)
dist.barrier()
t = time.time()
for _ in range(5):
    dist.all_reduce(x)
seconds = time.time() - t
if dist.get_rank() == 0:
    world = dist.get_world_size()
    gb = 5 * x.numel() * 4 * 2 * (world - 1) / world / 1e9
    print(f"bus bandwidth: {gb / seconds:.3f} GB/s over {world} ranks, {x.numel() * 4} bytes", flush=True)
dist.destroy_process_group()
