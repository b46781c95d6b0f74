"""The subcommands of `coordinatord`.

`serve` opens the store and imports `serving`, which runs the daemon. `reload` reads its settings again, and
`until_unused` ends it when no node needs it any more. `state` shows a state directory. `replay` steps through a
history, which `offline_replay` reads from it. `json_output` has the form of both for programs. `token` makes and
revokes access tokens.
"""
