"""What `coordinatord` can be asked to do: serve, show a state directory, step through a history."""
