"""The third floor: code that only reads the state. A query assigns nothing but its own names.

* `conditions` says what holds, and from when. `reasons` describes it in words.
* `next_round` says which nodes a round takes that is formed now, and `past_round` judges the one that is over.
* `desired_state` makes the message with which a node is asked for something, `admission` decides who is let in.
* `time_attribution` splits the time of a run between activities.
"""
