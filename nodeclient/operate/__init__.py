"""What a person asks of a coordinator: status, events, a report, and to drain, stop, restart or forget.

Each is one HTTP client that ends when it has its answer. It begins to write at once, so nothing here imports aiohttp
or asyncio. The coordinator decides about jobs and nodes, and puts it into words; nothing here does.

`cli` runs one of `status`, `event_log`, `report` and `admin_commands`; `watch` looks again every second. `client` asks
and reads the answers as records of `protocol.api`, `job_lookup` finds a job by its name; `request_errors` has what can
go wrong. `tables` and `formatting` lay out what `terminal_info` has room for.
"""
