"""What a person asks of a coordinator: status, events, a report, and to drain, stop, restart or forget.

Each is one HTTP client that ends when it has its answer. It begins to write at once, so nothing here imports aiohttp
or asyncio. What is decided about jobs and nodes does not belong here: the coordinator decides, and says it in words.
"""
