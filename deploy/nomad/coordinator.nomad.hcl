# The coordinator as a Nomad job: two of it, one active, the other takes over within 30 s.
#
#   nomad var put nomad/jobs/astra-coordinator operator_token=@operator.token agent_token=@agent.token
#   nomad acl policy apply -namespace default -job astra-coordinator astra-coordinator coordinator-policy.hcl
#   nomad job run coordinator.nomad.hcl
#
# It runs on machines that have Astraeus in /opt/astraeus, outside of the pool of the GPU machines: a coordinator needs
# little, and its machine may be drained. Agents have to reach whichever is active: give them a name that both machines
# answer to (`coordinator` in agent.toml); the one that waits does not listen.

job "astra-coordinator" {
  type     = "service"
  priority = 90

  group "coordinator" {
    count = 2

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    network {
      port "api" {
        static = 7411
      }
    }

    # It ends when another one has taken over, and when its configuration is wrong; both are worth another start.
    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    update {
      max_parallel = 1
      # The one that waits is healthy and serves nothing.
      health_check     = "task_states"
      min_healthy_time = "5s"
    }

    task "coordinator" {
      driver = "raw_exec"

      config {
        command = "/opt/astraeus/bin/astra-coordinator"
        args    = ["--config", "${NOMAD_TASK_DIR}/coordinator.toml"]
      }

      # Its own identity is the token: written into a file, renewed there, and read at every call.
      identity {
        file = true
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/operator.token"
        perms       = "0600"
        data        = "{{ with nomadVar \"nomad/jobs/astra-coordinator\" }}{{ .operator_token }}{{ end }}"
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/agent.token"
        perms       = "0600"
        data        = "{{ with nomadVar \"nomad/jobs/astra-coordinator\" }}{{ .agent_token }}{{ end }}"
      }

      template {
        destination = "${NOMAD_TASK_DIR}/coordinator.toml"
        data        = <<-TOML
          operator_token_file = "{{ env "NOMAD_SECRETS_DIR" }}/operator.token"
          agent_token_file = "{{ env "NOMAD_SECRETS_DIR" }}/agent.token"
          listen = ["0.0.0.0:{{ env "NOMAD_PORT_api" }}"]
          workspaces = ["default"]

          [engine]
          kind = "nomad"
          address = "http://{{ env "attr.unique.network.ip-address" }}:4646"
          token_file = "{{ env "NOMAD_SECRETS_DIR" }}/nomad_token"
          node_pool = "gpu"
        TOML
      }

      # SIGTERM lets the other one take over at once.
      kill_signal  = "SIGTERM"
      kill_timeout = "10s"

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
