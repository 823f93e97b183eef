"""An App whose handlers print, for workers that are started as programs and killed."""

import os
import sys
import time

from duetime import App, Context

app = App(os.environ["SHIPPING_URL"], user="test", lease=2)


@app.task
def prints_until_killed(ctx: Context, noted: str) -> None:
    """Print line after line, and note in a file how many were printed."""
    number = 0
    with open(noted, "ab", buffering=0) as file:
        while ctx.attempt == 1:
            print(f"line {number} ✓")
            number += 1
            file.write(b"x")
            time.sleep(0.002)
    print("the second attempt is quiet")


@app.task(isolation="process")
def prints_in_a_process(lines: int) -> None:
    os.write(1, b"raw \xff\0 bytes\n")
    for number in range(lines):
        print(f"line {number}")
    sys.stderr.write("the end")
