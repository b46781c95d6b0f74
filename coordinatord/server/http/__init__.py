"""What is answered over HTTP.

`jobs_api` lists jobs, `events_api` reads what happened, `live_updates` sends both to the page as they change, and
`admin_api` takes what operators ask for. `responses` makes answers in JSON or msgpack, `response_cache` makes each once
for all readers, and `browser_guard` refuses what another site's page asks for.
"""
