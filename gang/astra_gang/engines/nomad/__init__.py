"""
Nomad as the engine and as the place of the records. Its words ("alloc", "evaluation", "node") stop in this package.

| module | decides |
|---|---|
| `answers` | what Nomad's JSON means, whatever a version leaves out: pure |
| `job` | the batch job of a reservation, and a job without one of its machines: pure |
| `whole` | whether everything was placed, and why not: pure |
| `machines` | what nodes, agents' facts and allocations of others leave free: pure |
| `api` | one port to the HTTP API: bounds, patience, sentences |
| `library` | the calls that python-nomad makes, off the event loop |
| `wake` | the event stream: only ever a reason to look |
| `engine` | the engine: book first, then Nomad |
| `documents` `journal` `store` | the records in Nomad Variables |
| `office` | who is the one active coordinator |
| `adoption` | plain jobs that ask to be a gang |
"""
