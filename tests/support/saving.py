"""A worker that saves when it is asked to end."""

SAVING = """
import os, signal, sys
def save(*_):
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", 'a') as file:
        file.write('saved\\n')
    os._exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
print('trains', flush=True)
while True:
    signal.sigtimedwait([], 0.1)
"""
"""A worker's program, for `python -S -c`, that says that it trains. At SIGTERM or SIGINT it adds a line to the file of
its rank in the directory of its argument, and ends."""
