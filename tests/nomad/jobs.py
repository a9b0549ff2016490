"""Job files of the tests."""

from __future__ import annotations


def job(
    name: str,
    script: str,
    *,
    config: str = "",
    task: str = "",
    group: str = "",
    kind: str = "batch",
    restart: str = "attempts = 0",
    image: str = "host",
) -> str:
    """One task `w` that runs a shell script."""
    command = f'command = "sh"\n        args = ["-c", <<EOT\n{script}\nEOT\n        ]' if script else ""
    return f'''
job "{name}" {{
  type = "{kind}"
  group "g" {{
    restart {{
      {restart}
      mode = "fail"
      delay = "1s"
    }}
    reschedule {{
      attempts = 0
      unlimited = false
    }}
    {group}
    task "w" {{
      driver = "astra"
      config {{
        image = "{image}"
        {command}
        {config}
      }}
      resources {{
        cpu = 100
        memory = 128
      }}
      {task}
    }}
  }}
}}
'''
