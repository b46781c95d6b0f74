"""The HTTP API.

`jobs_api` lists jobs, `events_api` reads what happened, and `live_updates` sends both to the page as they change.
`logs_api` answers with workers' logs: `log_query` parses the request, and `log_reading` reads the nodes. `stacks_api`
shows where workers stand. `admin_api` takes operators' requests. `openapi` serves a description of all of it.

`request_body` reads the body of a request, and `responses` makes answers in JSON or msgpack, and turns away one reader
too many. `access_guard` finds out who sends a request, `browser_guard` refuses requests of other sites' pages, and
`page_access` lets a browser in by a link.
"""
