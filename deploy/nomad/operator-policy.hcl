# For whoever looks after the machines of the pool: drains them, makes them eligible again, rolls out the coordinator.
#
#   nomad acl policy apply astra-operator operator-policy.hcl

# nomad node drain, nomad node eligibility: a drained machine is left by its gangs after their checkpoint.
node {
  policy = "write"
}

# nomad node pool apply gpu-pool.hcl
node_pool "gpu" {
  policy = "write"
}

namespace "default" {
  capabilities = [
    "submit-job", # nomad job run coordinator.nomad.hcl
    "read-job",   # what became of it, and of the gangs' jobs
    "list-jobs",  # nomad job status without a name: the coordinator names the gangs' jobs
    "read-logs",  # the coordinator's log says why something waits
  ]

  # The coordinator's tokens, which its job reads there.
  variables {
    path "nomad/jobs/astra-coordinator" {
      capabilities = [
        "write",   # nomad var put: its tokens, and others in their place
        "read",    # nomad var get: which they are; the number that a put without -force has to name
        "destroy", # nomad var purge: when there is no coordinator any more
      ]
    }
  }
}
