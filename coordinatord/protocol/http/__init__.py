"""The requests and answers of the HTTP API, as records: the server writes them, and the operators' commands read them.

`api` has most of them, and the types of their fields. `log_answers` and `stack_answers` have those about one subject
each, and `page_events` has the events of the live page.
"""
