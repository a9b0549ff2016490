# For people who run plain jobs with driver = "astra", or gangs by job meta, on Nomad itself. Users of `astra run` need no
# token of Nomad: they have one of the coordinator's API. Neither the agent, nor the two plugins, nor any container needs
# one: plugins speak for the client that started them, and agents hear from the coordinator.
#
#   nomad acl policy apply astra-user user-policy.hcl
#
# One such block for each namespace.

namespace "default" {
  capabilities = [
    "submit-job",      # nomad job run, plan, stop
    "read-job",        # nomad job status, alloc status: the task's events are in it
    "list-jobs",       # nomad job status without a name
    "read-logs",       # nomad alloc logs
    "read-fs",         # nomad alloc fs
    "alloc-exec",      # nomad alloc exec; never alloc-node-exec: the driver isolates, a task is in its image
    "alloc-lifecycle", # nomad alloc restart, signal, stop
  ]
}

# nomad alloc status -stats, and which machines there are.
node {
  policy = "read"
}
