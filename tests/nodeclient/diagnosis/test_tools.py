"""The error is found in what hydra, typer, absl and other tools write around a script; the texts are recorded ones."""

import time

import pytest

from nodeclient.diagnosis import oom
from nodeclient.diagnosis.diagnose import diagnose

HYDRA_END = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"

HYDRA = f"""Error executing job with overrides: []
Traceback (most recent call last):
  File "/data/train.py", line 7, in main
    raise RuntimeError("no such data set\\nin the second line") from e
RuntimeError: no such data set
in the second line
{HYDRA_END}"""

HYDRA_TARGET = f"""Error executing job with overrides: []
Error locating target 'nets.Adam', set env var HYDRA_FULL_ERROR=1 to see chained exception.
{HYDRA_END}"""

HYDRA_CALL = f"""Error executing job with overrides: []
Error in call to target '__main__.Model':
ValueError('width 3 is odd')
{HYDRA_END}"""

HYDRA_KEY = f"""Could not override 'foo'.
To append to your config use +foo=1
Key 'foo' is not in struct
    full_key: foo
    object_type=dict
{HYDRA_END}"""

HYDRA_GRAMMAR = f"""no viable alternative at input '{{b'
See https://hydra.cc/docs/1.2/advanced/override_grammar/basic for details
{HYDRA_END}"""

FIRE = """ERROR: Could not consume arg: 4
Usage: train.py train 3 <command|value>
  available commands:    as_integer_ratio | bit_count | bit_length |
                         conjugate | from_bytes | to_bytes

For detailed information on this command, run:
  train.py train 3 --help
"""

ABSL = """FATAL Flags parsing error: Unknown command line flag 'nope'
Pass --helpshort or --helpfull to see help on flags.
"""

ABSL_FATAL = """F1129 00:45:09.986655 139957944019840 train.py:3] loss is nan at step 7
Fatal Python error: Aborted

Current thread 0x00007f4a7f896b80 (most recent call first):
  File "/usr/lib/python3.11/logging/__init__.py", line 978 in handle
  File "/data/train.py", line 3 in main
"""

LIGHTNING_CLI = """usage: train.py [--config CONFIG] [--lr LR]
tip: For details of accepted options run: train.py --help
error: Parser key "lr":
  Expected a <class 'float'>. Got value: x
"""

CLICK = """Usage: train.py [OPTIONS]
Try 'train.py --help' for help.

Error: No such option '--nope'.
"""

TYPER = """Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Invalid value for '--lr': Input should be a valid number, unable to parse    │
│ string as a number                                                           │
╰──────────────────────────────────────────────────────────────────────────────╯
"""

RICH_LOG = """[11/29/26 00:45:19] INFO     begin                                 rich_log.py:6
                    ERROR    training failed                      rich_log.py:10
                             ╭─ Traceback (most recent call las─╮
                             │ /data/rich_log.py:8 in <module>  │
                             │                                  │
                             │ ❱  8 │   raise ValueError("loss  │
                             ╰──────────────────────────────────╯
                             ValueError: loss is nan at step 7
"""

LOGURU = """2026-11-29 00:45:18.431 | ERROR    | __main__:main:7 - training failed
Traceback (most recent call last):

  File "/data/train.py", line 10, in <module>
    main(3)
    └ <function main at 0x7f5642ad84a0>

> File "/data/train.py", line 5, in main
    raise ValueError("loss is nan at step 7")

ValueError: loss is nan at step 7
2026-11-29 00:45:18.433 | INFO     | __main__:main:8 - shutting down
"""

CAUGHT = """Error: loss is nan at step 7
Use --debug for a full traceback.
"""

BEGINS = "reads the data\n"

NAMES_LOG = "Run failed, see run.log for details"

WORDS = {
    "hydra": (HYDRA, "RuntimeError: no such data set in the second line", ""),
    "hydra, no target": (
        HYDRA_TARGET,
        "",
        "Error locating target 'nets.Adam', set env var HYDRA_FULL_ERROR=1 to see chained exception.",
    ),
    "hydra, a call": (HYDRA_CALL, "", "Error in call to target '__main__.Model': ValueError('width 3 is odd')"),
    "hydra, no key": (HYDRA_KEY, "", "Key 'foo' is not in struct"),
    "hydra, an override": (HYDRA_GRAMMAR, "", "no viable alternative at input '{b'"),
    "fire": (FIRE, "", "ERROR: Could not consume arg: 4"),
    "absl": (ABSL, "", "FATAL Flags parsing error: Unknown command line flag 'nope'"),
    "a Lightning CLI": (LIGHTNING_CLI, "", "error: Parser key \"lr\": Expected a <class 'float'>. Got value: x"),
    "click": (CLICK, "", "Error: No such option '--nope'."),
    "typer": (
        TYPER,
        "Invalid value for '--lr': Input should be a valid number, unable to parse string as a number",
        "",
    ),
    "rich in a log": (RICH_LOG, "ValueError: loss is nan at step 7", ""),
    "loguru": (LOGURU, "ValueError: loss is nan at step 7", ""),
    "a script of its own": (CAUGHT, "", "Error: loss is nan at step 7"),
    "a script that names its log": (f"{BEGINS}{NAMES_LOG}\n", "", NAMES_LOG),
    "a script that traces": (f"{BEGINS}For rank 3 there is no trace\n", "", "For rank 3 there is no trace"),
    "an offer without a flag": (f"{CAUGHT}For more information, see the manual\n", "", "Error: loss is nan at step 7"),
    "only an offer": ("See train.log for details\n", "", "See train.log for details"),
}


@pytest.mark.parametrize(("stderr", "error", "words"), WORDS.values(), ids=WORDS)
def test_the_error_is_quoted_and_not_what_the_tool_says_after_it(stderr: str, error: str, words: str) -> None:
    found = diagnose(1, 4711, None, stderr.encode(), oom.count_kills())
    assert (found.error, found.message) == (error, f"its last output: {words}" if words else "")


def test_a_fatal_log_line_says_more_than_the_abort_after_it() -> None:
    found = diagnose(-6, 4711, None, ABSL_FATAL.encode(), oom.count_kills())
    assert found.error == "loss is nan at step 7"


@pytest.mark.parametrize(
    "line", ["+- Traceback (most recent " + "-" * 3_000 + "x", "#1 " + "a" * 3_000, "2026-11-29 00:45" + "a" * 3_000]
)
def test_long_lines_are_read_in_a_time_that_grows_with_their_length_only(line: str) -> None:
    stderr = "\n".join([line] * 500).encode()
    began = time.thread_time()
    diagnose(1, 4711, None, stderr, oom.count_kills())
    assert time.thread_time() - began < 5  # 0.2 s; with the square of the length, it takes 7 s or more
