"""Serves the HTTP API, for the commands of nodeclient, for programs and for the live page in a browser.

`jobs_api` lists jobs, `events_api` lists events, and `live_updates` streams jobs to the live page. `logs_api` serves
workers' logs: `log_query` parses the request, and `log_reading` reads the logs from the nodes. `stacks_api` serves
workers' stacks. `admin_api` handles operators' requests. `openapi` serves the API's description.

`request_body` reads the body of a request, and `responses` makes answers in JSON or msgpack, and limits readers.
`access_guard` authenticates requests, `browser_guard` rejects requests of other sites' pages, and `page_access` signs
browsers in by a link.
"""
