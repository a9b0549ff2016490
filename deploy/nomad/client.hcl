# What a Nomad client needs for Astraeus, besides what it has: a file beside the others in its configuration folder.
# Every plugin file needs its block, also an empty one: from Nomad 1.10 on a file without one is skipped, and 1.6 ends
# its start for a file that is no plugin. The blocks are matched by the names of the files.

# Links to the two programs of the installation: astra-nomad-driver and astra-nomad-device, and nothing else.
plugin_dir = "/opt/nomad/plugins"

client {
  enabled = true

  # Jobs that ask for GPUs name this pool, so that nothing else takes the machines.
  node_pool = "gpu"

  # Folders that jobs may mount as volumes; Nomad's ACL says who may.
  host_volume "scratch" {
    path = "/scratch"
  }
}

plugin "astra-nomad-driver" {
  config {
    socket = "/run/astraeus/agent.sock"
    # Folders of the machine that a task's `mount` may name; none by default.
    allow_mounts = ["/scratch"]
  }
}

# Stands in for nomad-device-nvidia: remove that one, the two would give the same GPUs away.
plugin "astra-nomad-device" {
  config {
    socket = "/run/astraeus/agent.sock"
  }
}

# `nomad alloc status -stats` shows nothing without it from Nomad 1.10.2 on.
telemetry {
  publish_allocation_metrics = true
}
