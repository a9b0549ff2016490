# What Nomad's client needs to load Astraeus's plugins, beside the configuration that it has. `astra nomad install` puts
# it into the configuration folder; client.hcl has what is the operator's own choice, such as the node pool.
# Every plugin file needs its block, also an empty one: from Nomad 1.10 on a file without one is skipped, and 1.6 ends
# its start for a file that is no plugin. The blocks are matched by the names of the files.

# Links to the programs of the installation, and nothing else.
plugin_dir = "/opt/nomad/plugins"

plugin "astra-nomad-driver" {
  config {
    socket = "/run/astraeus/agent.sock"
  }
}

# Stands in for nomad-device-nvidia: remove that one, the two would give the same GPUs away.
plugin "astra-nomad-device" {
  config {
    socket = "/run/astraeus/agent.sock"
  }
}
