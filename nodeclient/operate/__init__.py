"""The commands for operators: show status, events and a report; drain, stop, restart or forget.

Each is one HTTP client that ends when it has its answer. It must begin to write at once, so nothing here imports
aiohttp or asyncio. The coordinator decides about jobs and nodes and writes the reasons; nothing here does.

`cli` runs one of `status`, `event_log`, `worker_logs`, `worker_stacks`, `report`, `page_link` and `admin_commands`;
`watch` looks again every second. `client` sends requests and reads the answers as records of `protocol.api`, and
`answering` finds out which of several coordinators to ask. `job_lookup` finds a job by its name; `request_errors` has
what can go wrong. `tables` and `formatting` lay out what fits the `terminal_info`.
"""
