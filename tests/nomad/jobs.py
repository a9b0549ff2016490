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
    resources: str = "cpu = 100\nmemory = 128",
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
        {resources}
      }}
      {task}
    }}
  }}
}}
'''


def while_cut_off(version: str) -> str:
    """Of a group: a machine that is cut off for five minutes keeps what runs there."""
    if version.startswith("2."):
        return 'disconnect {\n      lost_after = "5m"\n      replace = false\n    }'
    return 'max_client_disconnect = "5m"'


def gang(
    name: str,
    drive: str,
    *,
    version: str,
    count: int = 4,
    meta: str = "Gang",
    kind: str = "batch",
    restart: str = "attempts = 0",
    hosts: bool = True,
    env: str = "",
    image: str = "host",
    more: str = "",
) -> str:
    """
    Keepers of diaries as a plain job that asks to be a gang; the task is `w`.

    Args:
        version: Of Nomad: what a machine that is cut off for a while keeps is said otherwise before 1.8.
        more: Whole groups behind this one.
    """
    distinct = 'constraint {\n      operator = "distinct_hosts"\n      value = "true"\n    }' if hosts else ""
    return f'''
job "{name}" {{
  type = "{kind}"
  meta {{
    astra_start = "{meta}"
  }}
  group "g" {{
    count = {count}
    {distinct}
    restart {{
      {restart}
      mode = "fail"
    }}
    reschedule {{
      attempts = 0
      unlimited = false
    }}
    {while_cut_off(version)}
    task "w" {{
      driver = "astra"
      kill_timeout = "30s"
      config {{
        image = "{image}"
        command = "/diary/diary.sh"
        mount {{
          source = "{drive}"
          target = "/diary"
        }}
      }}
      env {{
        DIARY = "/diary/{name}"
        {env}
      }}
      resources {{
        cpu = 100
        memory = 64
      }}
    }}
  }}
  {more}
}}
'''
