"""The commands for operators: show status, events and a report; drain, stop, restart or forget.

Each is one HTTP client that ends when it has its answer. A person waits for it, so nothing here imports aiohttp or
asyncio. The coordinator decides about jobs and nodes and writes the reasons; nothing here does.

`cli` runs one of `status`, `event_log`, `worker_logs`, `worker_stacks`, `dumped_hang`, `report`, `job_end`, `page_link`
and `admin_commands`; `watch` repeats a request every second. `client` finds out which of several coordinators answers,
sends requests, and reads the answers as records of `protocol.http`. `job_lookup` finds a job by its name;
`request_errors` has the errors. `formatting` makes lines that fit the terminal that `terminal_info` describes.
"""
