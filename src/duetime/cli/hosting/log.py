"""The log of commands that run until they are stopped: lines on stderr, in UTC."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")


def log_level_option(default: str) -> Callable[[Function], Function]:
    return click.option("--log-level", type=click.Choice(LEVELS), default=default, show_default=True, help="What is logged to stderr.")


def log_to_stderr(level: str, who: str = "") -> None:
    """Configure logging, unless the App's module has done so already."""
    formatter = logging.Formatter(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s")
    formatter.converter = time.gmtime
    formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = "%s.%03dZ"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
