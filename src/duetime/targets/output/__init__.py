"""What attempts print and log: written to a file per attempt, shipped to the store, read and followed from there.

A `Sink` writes to one attempt's file (`files`), `Capture` redirects the process's streams and log records there (`capture`), a `Spool`
is the folder of one worker's files (`spool`), which it ships to the store (`worker.shipping`), and `Outputs` reads (`reading`).
"""

from duetime.targets.output.capture import Capture, LogHandler, Printing, Writer, current_attempt
from duetime.targets.output.echo import Echo, Printed
from duetime.targets.output.files import DEFAULT_CAP, CappedFile, OutputFiles, Sink, cut_line

__all__ = [
    "DEFAULT_CAP",
    "CappedFile",
    "Capture",
    "Echo",
    "LogHandler",
    "OutputFiles",
    "Printed",
    "Printing",
    "Sink",
    "Writer",
    "current_attempt",
    "cut_line",
]
