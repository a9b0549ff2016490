# What the coordinator's token may do on Nomad: the least that works. Every line was tried by taking it away.
#
#   nomad acl policy apply -namespace default -job astra-coordinator astra-coordinator coordinator-policy.hcl
#
# attaches it to the identity of the coordinator's job (coordinator.nomad.hcl), which needs no token of its own.
# Without that: nomad acl token create -type client -policy astra-coordinator, into the file that token_file names.

# One such block for each workspace of coordinator.toml: a workspace is a namespace.
namespace "default" {
  capabilities = [
    "submit-job", # register the job of a reservation, take a lost machine off its list, stop it
    "read-job",   # whether everything was placed; what others hold on the machines; the event stream
    "list-jobs",  # jobs of its own that no run has any more, and plain jobs that ask to be a gang
  ]
}

# The namespace of the records ([engine] namespace); here the same. "astra" is [engine] prefix.
namespace "default" {
  variables {
    path "astra/*" {
      capabilities = [
        "read",    # to load them (it implies to list them), and to know what became of a write without an answer
        "write",   # every commit; the lock that elects the active coordinator
        "destroy", # of runs that are forgotten, and of the parts of documents that were written anew
      ]
    }
  }
}

# Machines are nodes: which there are, whether they are ready, drained, eligible; and the servers' version.
node {
  policy = "read"
}
