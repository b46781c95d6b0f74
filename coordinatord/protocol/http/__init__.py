"""The requests and answers of the HTTP API, as records: the server writes them, and the operators' commands read them.

`api` has most of them. `failure_answers`, `log_answers`, `stack_answers`, `kept_answers`, `lateness_answers`,
`start_answers` and `coordinator_answers` have those about one subject each. `answer_fields` has the types of their
fields, and `page_events` the events of the live page. The same schema as for messages writes and reads all of them.
"""
