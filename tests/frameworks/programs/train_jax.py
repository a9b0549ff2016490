"""The JAX recipe as users copy it, then what JAX made of the environment and one sum over all processes, as JSON."""

import json
import os

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # a CPU has none without it; GPUs have NCCL

jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=int(os.environ["WORLD_SIZE"]),
    process_id=int(os.environ["RANK"]),
)
print(jax.process_index(), jax.device_count(), jax.local_device_count())

from jax.experimental import multihost_utils  # noqa: E402  # only once JAX is distributed

ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1]))
print(
    json.dumps(
        {
            "jax": jax.__version__,
            "rank": jax.process_index(),
            "size": jax.process_count(),
            "sum": int(ranks.sum()),
            "devices": jax.device_count(),
            "local_devices": jax.local_device_count(),
            "cuda_devices": jax.config._read("jax_cuda_visible_devices"),
            "given": int(os.environ.get("ASTRAEUS_GPU_COUNT", "0")),
            "slurm": sorted(name for name in os.environ if name.startswith("SLURM_")),
        }
    ),
    flush=True,
)
