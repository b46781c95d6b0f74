"""The HTTP API.

`jobs_api` lists jobs, `events_api` reads what happened, `logs_api` reads workers' logs by a `log_query` and in a
`log_reading`, `live_updates` sends both to the page as they change, and
`admin_api` takes operators' requests. `responses` makes answers in JSON or msgpack, `response_cache` makes each once
for all readers, and `browser_guard` refuses requests of other sites' pages.
"""
