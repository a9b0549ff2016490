# A gang of four as a plain job, for Nomad 1.8 and later: nomad job run examples/nomad/gang.nomad.hcl, then nomad alloc
# status. Nomad 1.6 and 1.7 take gang-before-1.8.nomad.hcl: they refuse a disconnect block.
# With a coordinator on the cluster its tasks wait at the barrier until all four are placed and prepared, start together,
# each with its rank, and restart together in place when one fails. docs/nomad-adoption.md says what else holds.
job "hello" {
  type = "batch"

  meta {
    astra_start = "Gang"
  }

  group "hello" {
    count = 4

    # One worker on each machine.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # Nomad itself restarts and moves nobody: the gang does it together.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    # A machine that is cut off for a while keeps its worker.
    disconnect {
      lost_after = "5m"
      replace    = false
    }

    task "worker" {
      driver = "astra"

      config {
        image   = "host"
        command = "sh"
        # A dollar with braces is Nomad's own: for the shell's, write $NAME, or $$${NAME}.
        args = ["-c", "echo worker $RANK of $WORLD_SIZE on $(hostname), leader at $MASTER_ADDR:$MASTER_PORT; sleep 20"]
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
