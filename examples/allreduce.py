import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
x = torch.ones(256 * 1024 * 1024 // 4, device="cuda")  # 256 MiB
for _ in range(5):
    dist.all_reduce(x)
torch.cuda.synchronize()
t = time.time()
for _ in range(20):
    dist.all_reduce(x)
torch.cuda.synchronize()
if dist.get_rank() == 0:
    gb = 20 * x.numel() * 4 * 2 * (dist.get_world_size() - 1) / dist.get_world_size() / 1e9
    print(f"bus bandwidth: {gb / (time.time() - t):.1f} GB/s over {dist.get_world_size()} GPUs")
