"""All-reduces of float32 by Gloo: SIZE_BYTES ITERATIONS. Rank 0 prints each one's microseconds, of the slowest rank."""

import sys
import time

import torch
import torch.distributed as dist

size_bytes, iterations = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
own = torch.zeros(size_bytes // 4)
took = torch.zeros(iterations + 1, dtype=torch.float64)
dist.barrier()
for i in range(iterations + 1):  # the first one connects, and is not printed
    began = time.perf_counter()
    dist.all_reduce(own)
    took[i] = time.perf_counter() - began
dist.all_reduce(took, op=dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    for seconds in took[1:]:
        print(f"took {1e6 * float(seconds):.1f}")
dist.destroy_process_group()
