"""Runs the commands for operators: show status, events and a report; drain, stop, restart or forget.

Each command is an HTTP client, and most end with the first answer. A person waits for it, so nothing here imports
aiohttp or asyncio. The coordinator makes all decisions and writes the reasons.

The commands are `status`, `event_log`, `worker_logs`, `worker_stacks`, `report`, `job_end`, `page_link`,
`preflight_report` and `admin_commands`; `watch` shows an answer anew every second. `client` finds a coordinator that
answers, sends requests, repeats a read over outages, and parses the answers as records of `protocol.http`. `job_lookup`
finds a job by its name. `formatting` formats lines for the terminal that `terminal_info` describes.
"""
