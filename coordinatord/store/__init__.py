"""What outlives a decision: the interface through which records are made durable, and the places that keep them."""
