"""Serves the HTTP API.

`jobs_api` lists jobs, `events_api` lists events, and `live_updates` sends both to the page as they change. `logs_api`
answers with workers' logs: `log_query` parses the request, and `log_reading` reads the nodes. `stacks_api` shows
workers' stacks. `admin_api` handles operators' requests. `openapi` serves a description of all of it.

`request_body` reads the body of a request, and `responses` makes answers in JSON or msgpack, and limits readers.
`access_guard` authenticates requests, `browser_guard` rejects requests of other sites' pages, and `page_access` opens a
browser's session by a link.
"""
