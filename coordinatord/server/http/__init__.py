"""What is answered over HTTP.

`jobs` lists jobs, `events` reads what happened, `live_updates` sends both to the page as they change, and `admin` takes
what operators ask for. `responses` makes answers in JSON or msgpack, `response_cache` makes each once for all readers,
and `browser_guard` refuses what another site's page asks for.
"""
