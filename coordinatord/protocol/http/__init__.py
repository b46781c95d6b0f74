"""Defines the requests and answers of the HTTP API, as records that the server and the operators' commands share.

`api` has most of them, and the types of their fields. `log_answers` and `stack_answers` have those of one subject each,
and `page_events` has the events of the live page.
"""
