"""An App whose handlers print, for workers that are started as programs and killed."""

import os
import sys
import time

from duetime import App, Context

app = App(os.environ["SHIPPING_URL"], user="test", lease=2)


@app.task
def prints_until_killed(ctx: Context) -> None:
    number = 0
    while ctx.attempt == 1:
        print(f"line {number} ✓")
        number += 1
        time.sleep(0.002)
    print("the second attempt is quiet")


@app.task(isolation="process")
def prints_in_a_process(lines: int) -> None:
    os.write(1, b"raw \xff\0 bytes\n")
    for number in range(lines):
        print(f"line {number}")
    sys.stderr.write("the end")
