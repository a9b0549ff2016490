# One task with the driver of Astraeus: nomad job run examples/nomad/hello.nomad.hcl, then nomad alloc logs.
# The image `host` is the machine's own root file system, copy-on-write: no registry is needed.
job "hello" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "astra"

      config {
        image   = "host"
        command = "sh"
        # A dollar with braces is Nomad's own: for the shell's, write $NAME, or $$${NAME}.
        args = ["-c", "echo hello from $NOMAD_TASK_NAME on $(hostname); sleep 20"]
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
