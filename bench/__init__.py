"""The figures of docs/performance.md, measured on this machine: `make bench`, `make bench ONLY=slots`."""
